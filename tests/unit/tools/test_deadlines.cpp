#include <chrono>
#include <limits>

#include "kiln/communicator.hpp"
#include "kiln_test.hpp"

using namespace kiln;

namespace {

double seconds_of(double asked) {
  const Deadline start = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(deadline_after(start, asked) - start).count();
}

}  // namespace

TEST_CASE("a deadline is as far away as was asked", "[tools]") {
  CHECK(seconds_of(0) == 0);
  CHECK(seconds_of(0.25) == Approx(0.25));
  CHECK(seconds_of(3600) == Approx(3600));
}

TEST_CASE("seconds that the clock cannot hold are cut, not wrapped", "[tools]") {
  const double far = GENERATE(1e9, 1e10, 1e30, std::numeric_limits<double>::max(),
                              std::numeric_limits<double>::infinity());
  CHECK(seconds_of(far) == Approx(1e9));
  CHECK(deadline_in(far) > std::chrono::steady_clock::now() + std::chrono::hours(24 * 365));
}

TEST_CASE("seconds that are none are no wait", "[tools]") {
  const double none =
      GENERATE(-1.0, -1e30, -std::numeric_limits<double>::infinity(),
               std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::quiet_NaN());
  CHECK(seconds_of(none) == 0);
}
