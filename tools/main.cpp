// The `kiln` command, with the shipped kernels.
#include "kiln/cli.hpp"

int main(int argc, char** argv) { return kiln::cli_main(argc, argv, kiln::shipped_kernels()); }
