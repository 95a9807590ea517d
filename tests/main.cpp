#include "run_tests.hpp"

int main(int argc, char** argv) { return kiln::test::run_tests(argc, argv); }
