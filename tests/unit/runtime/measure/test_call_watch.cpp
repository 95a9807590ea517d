// Calls that are watched, because nothing can end them.
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "kiln_test.hpp"
#include "runtime/measure/call_watch.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::runtime;
using kiln::test::becomes;

TEST_CASE("a call is told of again and again until it ends", "[runtime][measure]") {
  constexpr double kLimit = 0.01;
  std::mutex mutex;
  std::vector<double> told;
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return told.size();
  };
  CallWatch watch([&](double seconds) {
    const std::lock_guard lock(mutex);
    told.push_back(seconds);
    throw std::runtime_error("a listener's own fault");
  });
  for (int call = 0; call < 3; ++call) {
    // Nothing is late that takes no time.
    watch.begin(1000);
    watch.end();
    const std::size_t before = count();
    watch.begin(kLimit);  // sooner than the thread would wake
    CHECK(becomes([&] { return count() >= before + 3; }));
    const double seconds = watch.end();
    const std::size_t after = count();
    CHECK(told[before] >= kLimit);
    for (std::size_t i = before + 1; i < after; ++i) CHECK(told[i] >= 2 * told[i - 1]);
    CHECK(seconds >= told[after - 1]);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    CHECK(count() == after);
  }
}

TEST_CASE("a call ends while it is told of only when all is said", "[runtime][measure]") {
  std::atomic<bool> telling = false, said = false;
  CallWatch watch([&](double) {
    telling = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    said = true;
  });
  watch.begin(0.001);
  REQUIRE(becomes([&] { return telling.load(); }));
  watch.end();
  CHECK(said);
}

TEST_CASE("where nobody gives a limit it follows what was seen", "[runtime][measure]") {
  CHECK(usual_limit(0) == 300);
  CHECK(usual_limit(0.1) == 30);
  CHECK(usual_limit(4) == 80);
}
