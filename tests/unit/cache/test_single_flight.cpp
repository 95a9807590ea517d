#include <atomic>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cache/single_flight.hpp"
#include "kiln_test.hpp"

using kiln::cache::SingleFlight;

namespace {

/// Runs `body(i)` on many threads that start together.
void on_threads(int count, const std::function<void(int)>& body) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      for (++ready; ready < count;) std::this_thread::yield();
      body(i);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("one thread works, the others get its outcome", "[cache][single_flight]") {
  SingleFlight<std::string, int> flights;
  const std::string key = "a";
  std::atomic<int> works{0}, wrong{0}, arrived{0};
  on_threads(16, [&](int) {
    ++arrived;
    wrong += flights.run(key, [&] {
      ++works;
      while (arrived < 16) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for the others to join
      return 42;
    }) != 42;
  });
  CHECK(wrong == 0);
  CHECK(works < 16);
  const int before = works;
  CHECK(flights.run(key, [&] { return ++works; }) == before + 1);  // anew
}

TEST_CASE("keys do not wait for each other", "[cache][single_flight]") {
  SingleFlight<std::string, int> flights;
  const std::string a = "a", b = "b";
  // Each waits until the other is at work: that ends only if both run at once.
  std::atomic<int> at_work{0};
  on_threads(2, [&](int i) {
    flights.run(i ? a : b, [&] {
      for (++at_work; at_work < 2;) std::this_thread::yield();
      return 0;
    });
  });
  CHECK(flights.run(a, [&] { return flights.run(b, [] { return 7; }); }) == 7);
}

TEST_CASE("what the work throws, all threads that wait for it get, and the next works anew",
          "[cache][single_flight]") {
  SingleFlight<std::string, int> flights;
  const std::string key = "a";
  std::atomic<int> works{0}, caught{0}, arrived{0};
  on_threads(8, [&](int) {
    try {
      ++arrived;
      flights.run(key, [&]() -> int {
        ++works;
        while (arrived < 8) std::this_thread::yield();
        throw std::runtime_error("no");
      });
    } catch (const std::runtime_error& error) {
      caught += std::string(error.what()) == "no";
    }
  });
  CHECK(caught == 8);
  CHECK(flights.run(key, [] { return 1; }) == 1);
}

TEST_CASE("after the work every caller sees what it left behind", "[cache][single_flight]") {
  SingleFlight<std::string, int> flights;
  const std::vector<std::string> keys{"a", "b", "c", "d"};
  std::vector<std::atomic<int>> store(4);
  std::atomic<int> works{0}, wrong{0};
  on_threads(8, [&](int thread) {
    for (int round = 0; round < 500; ++round) {
      const auto i = static_cast<std::size_t>(round + thread) % 4;
      const int got = flights.run(keys[i], [&] {
        if (const int kept = store[i]) return kept;
        ++works;
        return store[i] = static_cast<int>(i) + 1;
      });
      wrong += got != static_cast<int>(i) + 1;
    }
  });
  CHECK(wrong == 0);
  CHECK(works == 4);
}

TEST_CASE("a caller that does not want to wait is told so", "[cache][single_flight]") {
  SingleFlight<std::string, int> flights;
  CHECK(flights.try_run("a", [] { return 1; }) == 1);
  std::optional<int> same, another;
  flights.run("a", [&] {
    // From another thread, since the work must not ask for its own key.
    std::thread other([&] {
      same = flights.try_run("a", [] { return 2; });
      another = flights.try_run("b", [] { return 3; });
    });
    other.join();
    return 0;
  });
  CHECK_FALSE(same);
  CHECK(another == 3);
  CHECK_THROWS_AS(flights.try_run("a", []() -> int { throw std::runtime_error("no"); }),
                  std::runtime_error);
  CHECK(flights.try_run("a", [] { return 4; }) == 4);
}
