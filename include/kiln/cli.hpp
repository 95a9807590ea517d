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

/// Runs the command line and returns its exit code, 0 when it is done; `kiln reference` lists the
/// others. Prints to standard output and standard error; throws nothing. While a subcommand works,
/// it handles SIGINT and SIGTERM; call it before other threads are started.
int cli_main(int argc, char** argv, Registry registry);

}  // namespace kiln
