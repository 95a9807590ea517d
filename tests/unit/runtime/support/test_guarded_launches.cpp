// What a program's guard may do with the launches that it is given.
#include <stdexcept>

#include "kiln_test.hpp"
#include "runtime/support/guarded_launches.hpp"

using namespace kiln;
using runtime::GivenUp;
using runtime::GuardedLaunches;

TEST_CASE("a guard that ends a launch ends the launches after it", "[runtime][guard]") {
  int launched = 0;
  GuardedLaunches launches([](const std::function<void()>& launch) {
    launch();
    throw std::runtime_error("it took too long");
  });
  for (int i = 0; i < 2; ++i) CHECK_THROWS_AS(launches.run([&] { ++launched; }), GivenUp);
  CHECK(launched == 1);
  CHECK_FALSE(launches.failure());
}

TEST_CASE("a guard that launches nothing is the program's mistake", "[runtime][guard]") {
  int launched = 0, asked = 0;
  GuardedLaunches launches([&](const std::function<void()>&) { ++asked; });
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH(launches.run([&] { ++launched; }),
                      Catch::Contains("without calling the launches"));
  CHECK(launched == 0);
  CHECK(asked == 1);
  CHECK(launches.failure());
}
