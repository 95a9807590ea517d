#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <vector>

#include "kiln_test.hpp"
#include "runtime/support/parallel.hpp"
#include "unit/runtime/no_more_threads.hpp"

using kiln::runtime::for_each_block;
using kiln::runtime::for_each_index;
using kiln::test::NoMoreThreads;

TEST_CASE("every index once, on all threads, with progress on this one", "[runtime][parallel]") {
  std::vector<std::atomic<int>> seen(500);
  std::atomic<int> inside{0};
  std::mutex mutex;
  std::set<std::thread::id> workers;
  std::vector<std::size_t> said;
  const auto here = std::this_thread::get_id();
  for_each_index(
      4, seen.size(), {},
      [&](std::size_t i) {
        ++inside;
        while (inside < 4) std::this_thread::yield();  // four must be in here at once
        ++seen[i];
        const std::lock_guard lock(mutex);
        workers.insert(std::this_thread::get_id());
      },
      [&](std::size_t done) {
        CHECK(std::this_thread::get_id() == here);
        said.push_back(done);
      });
  for (const auto& count : seen) CHECK(count == 1);
  CHECK(workers.size() == 4);
  CHECK(workers.count(here) == 0);
  REQUIRE(!said.empty());
  CHECK(said.back() == seen.size());
  CHECK(std::is_sorted(said.begin(), said.end()));
}

TEST_CASE("nothing to do, no progress, no threads asked for", "[runtime][parallel]") {
  int calls = 0;
  for_each_index(4, 0, {}, [&](std::size_t) { ++calls; }, {});
  CHECK(calls == 0);
  for_each_index(0, 3, {}, [&](std::size_t) { ++calls; }, {});
  CHECK(calls == 3);
}

TEST_CASE("the first exception ends it, after what has begun", "[runtime][parallel]") {
  std::atomic<int> begun{0}, ended{0};
  CHECK_THROWS_WITH(for_each_index(3, 100000, {},
                                   [&](std::size_t i) {
                                     ++begun;
                                     if (i == 20) throw std::runtime_error("twenty");
                                     std::this_thread::yield();
                                     ++ended;
                                   },
                                   {}),
                    "twenty");
  CHECK(begun < 100000);
  CHECK(begun == ended + 1);
  begun = 0;
  CHECK_THROWS_WITH(for_each_index(
                        2, 100000, {},
                        [&](std::size_t) {
                          ++begun;
                          std::this_thread::sleep_for(std::chrono::microseconds(50));
                        },
                        [](std::size_t) { throw std::runtime_error("enough"); }),
                    "enough");
  CHECK(begun < 100000);
}

TEST_CASE("a stop request begins nothing more", "[runtime][parallel]") {
  std::stop_source stop;
  std::atomic<int> calls{0};
  for_each_index(2, 100000, stop.get_token(),
                 [&](std::size_t) {
                   const int call = ++calls;
                   if (call == 10) stop.request_stop();
                   // The other thread may have begun before the request, but no more than once.
                   while (call > 10 && !stop.stop_requested()) std::this_thread::yield();
                 },
                 {});
  CHECK(calls >= 10);
  CHECK(calls <= 11);
  calls = 0;
  for_each_index(2, 10, stop.get_token(), [&](std::size_t) { ++calls; }, {});
  CHECK(calls == 0);
}

TEST_CASE("blocks are all places, each once", "[runtime][parallel]") {
  for (const std::size_t count : {0u, 1u, 1000u, 1u << 18, (1u << 18) + 1, 1000003u}) {
    CAPTURE(count);
    std::vector<unsigned char> seen(count);
    for_each_block(count, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) ++seen[i];
    });
    CHECK(std::ranges::count(seen, 1) == static_cast<std::ptrdiff_t>(count));
  }
}

TEST_CASE("where no thread can be started, the calling one does the work", "[runtime][parallel]") {
  const NoMoreThreads none;
  CHECK_THROWS_AS(std::thread([] {}).join(), std::system_error);
  std::vector<std::size_t> seen, said;
  for_each_index(
      4, 5, {}, [&](std::size_t i) { seen.push_back(i); },
      [&](std::size_t done) { said.push_back(done); });
  CHECK(seen == std::vector<std::size_t>{0, 1, 2, 3, 4});
  CHECK(said == std::vector<std::size_t>{5});
  CHECK_THROWS_WITH(
      for_each_index(4, 5, {}, [](std::size_t) { throw std::runtime_error("no"); }, {}), "no");
}
