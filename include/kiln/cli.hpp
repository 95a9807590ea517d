// The `kiln` command as a function, so that a program with kernels of its own has the same command.
//
//   int main(int argc, char** argv) {
//     return kiln::cli_main(argc, argv, kiln::shipped_kernels().add(my_kernel()));
//   }
//
// Link with the dependency `kiln-cli` (pkg-config) beside `kiln`.
#pragma once

#include "kiln/registry.hpp"

namespace kiln {

/// Runs the command line and returns its exit code: 0 done, 1 your mistake, 2 the environment, 3 a
/// bug in Kiln, 130 interrupted. Prints to standard output and standard error; throws nothing.
/// While a subcommand works, SIGINT and SIGTERM are taken; call it before other threads are
/// started.
int cli_main(int argc, char** argv, Registry registry);

}  // namespace kiln
