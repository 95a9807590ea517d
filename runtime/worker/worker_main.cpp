// kiln-worker: runs candidates for the process that has started it, which is a program that uses
// Kiln.
#include "runtime/worker/bench_service.hpp"

int main(int argument_count, char** arguments) {
  using namespace kiln::runtime;
  return serve(argument_count, arguments, bench_service());
}
