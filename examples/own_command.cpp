// The kiln command with a kernel of one's own in it: `own_command tune saxpy --problem n=4096`.
#include <kiln/cli.hpp>

#include "saxpy_kernel.hpp"

int main(int argc, char** argv) {
  kiln::Registry registry = kiln::shipped_kernels();
  registry.add({.name = "saxpy",
                .summary = "y[i] = a * x[i] + y[i]",
                .types = {"f32"},
                .make = [](std::string_view) { return saxpy_kernel().definition(); }});
  return kiln::cli_main(argc, argv, registry);
}
