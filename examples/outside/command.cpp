// The kiln command as a program of one's own.
#include <kiln/cli.hpp>

int main(int argc, char** argv) { return kiln::cli_main(argc, argv, kiln::shipped_kernels()); }
