// Catch2 itself: of version 2 this is where all of it is compiled, once.
#define CATCH_CONFIG_RUNNER
#include "kiln_test.hpp"
#include "run_tests.hpp"

namespace kiln::test {

int run_tests(int argc, char** argv) { return Catch::Session().run(argc, argv); }

}  // namespace kiln::test
