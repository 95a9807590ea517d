// A worker on an odd device (odd_device.hpp).
#include "odd_device.hpp"
#include "runtime/worker/bench_service.hpp"

int main(int argument_count, char** arguments) {
  using namespace kiln::runtime;
  return serve(argument_count, arguments, bench_service([](const WorkerDevice&) {
                 return std::make_shared<kiln::test::OddDevice>();
               }));
}
