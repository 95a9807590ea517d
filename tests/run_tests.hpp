// For programs of tests with a `main` of their own.
#pragma once

namespace kiln::test {

/// What Catch2's own `main` does.
int run_tests(int argc, char** argv);

}  // namespace kiln::test
