// kiln-compiler: compiles for the process that has started it, which is a program that uses Kiln.
#include "runtime/build/compile_service.hpp"

int main(int argument_count, char** arguments) {
  using namespace kiln::runtime;
  return serve(argument_count, arguments, compile_service([](const CompilerPlace& place) {
                 return open_compiler(place, Opening::at_once);
               }));
}
