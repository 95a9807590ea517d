// When the background may measure, by itself.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "kiln_test.hpp"
#include "runtime/background/measuring_times.hpp"

using kiln::runtime::MeasuringTimes;
using std::chrono::seconds;

namespace {

using namespace kiln;

/// A clock that the test moves.
struct Times {
  explicit Times(double duty) : times(duty, [this] { return now.load(); }) {}
  std::atomic<runtime::Clock::time_point> now{runtime::Clock::time_point(seconds(1000))};
  MeasuringTimes times;
};

}  // namespace

TEST_CASE("closing a window ends a slice of the duty, and waits for it", "[runtime][background]") {
  Times t(1e-6);
  auto slice = t.times.begin(1e6);
  REQUIRE(slice);
  CHECK(slice->by_duty());
  t.times.open_window();
  std::atomic<bool> over{false};
  std::jthread measuring([&] {
    while (!slice->stop().stop_requested()) std::this_thread::yield();
    over = true;
    slice.reset();
  });
  t.times.close_window();
  CHECK(over);
}

TEST_CASE("closing a window does not wait for what has left the device", "[runtime][background]") {
  MeasuringTimes times(0);
  times.open_window();
  const auto stretch = times.begin();
  REQUIRE(stretch);
  CHECK_FALSE(stretch->by_duty());
  stretch->left_device();
  times.close_window();  // would wait for ever
  CHECK(stretch->stop().stop_requested());
  times.open_window();
  CHECK_FALSE(times.begin());  // one at a time
  times.close_window();
}

TEST_CASE("after a window and after a slice there is a pause", "[runtime][background]") {
  Times t(0.25);
  t.times.open_window();
  t.times.close_window();
  CHECK_FALSE(t.times.may_measure());
  t.now = t.now.load() + seconds(1);  // three times a slice
  REQUIRE(t.times.may_measure());
  {
    const auto slice = t.times.begin();
    REQUIRE(slice);
    t.now = t.now.load() + seconds(10);
  }
  t.now = t.now.load() + seconds(29);
  CHECK_FALSE(t.times.begin());
  // A window does not shorten a pause, and needs none itself.
  t.times.open_window();
  CHECK(t.times.begin());
  t.times.close_window();
  CHECK_FALSE(t.times.begin());
  t.now = t.now.load() + seconds(1);
  CHECK(t.times.begin());
}

TEST_CASE("a thread that waits to measure sleeps until something changes",
          "[runtime][background]") {
  using std::chrono::milliseconds;
  constexpr auto never = runtime::Clock::time_point::max();
  MeasuringTimes times(0);
  std::atomic<int> wakes{0};
  std::jthread sleeping([&] {
    for (unsigned long seen = times.changes(); !times.ended(); seen = times.changes()) {
      times.doze(seen, never);
      ++wakes;
    }
  });
  std::this_thread::sleep_for(milliseconds(300));
  CHECK(wakes == 0);  // no window is open
  times.open_window();
  while (wakes == 0) std::this_thread::sleep_for(milliseconds(1));
  times.close_window();
  times.end();
  sleeping.join();

  MeasuringTimes again(0);
  const unsigned long seen = again.changes();
  again.open_window();
  again.doze(seen, never);  // it has changed already
  again.close_window();
  again.doze(again.changes(), again.now() + milliseconds(5));
  Times paused(0.5);
  paused.times.open_window();
  paused.times.close_window();
  paused.times.doze(paused.times.changes(), never);  // for what is left of the pause
}
