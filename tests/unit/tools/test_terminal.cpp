#include "kiln_test.hpp"
#include "tools/terminal.hpp"

using kiln::tools::time_left;

TEST_CASE("The bar tells the time left, as far as a limit tells it", "[tools]") {
  CHECK(time_left({.seconds = 60}, 12.4, 0, 5) == "48 s left");
  // Finals and what had begun are finished beyond the limit.
  CHECK(time_left({.seconds = 60}, 61, 0, 5) == "0 s left");
  CHECK(time_left({.seconds = 60, .evaluations = 10}, 12, 0, 5) == "48 s left");
  // Of 10 evaluations 4 were there before: 3 took 6 seconds, and 3 are left.
  CHECK(time_left({.evaluations = 10}, 6, 4, 7) == "about 6 s left");
  CHECK(time_left({.evaluations = 10}, 6, 4, 12) == "about 0 s left");
  CHECK(time_left({.evaluations = 10}, 6, 4, 4) == "6 s");
  CHECK(time_left({}, 6, 0, 7) == "6 s");
}
