#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kiln_test.hpp"
#include "runtime/build/build_queue.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using namespace kiln::runtime;
using kiln::test::Bench;
using kiln::test::doubling;

namespace {

BuildQueue queue_of(Bench& bench, const KernelDefinition& kernel, const Target& target,
                    TraceLog& trace, BuildCrew* crew = nullptr) {
  return {crew, bench.builder.threads(),
          [&](const Values& config) {
            return [&, config] { return bench.builder.build(kernel, config, target); };
          },
          [&](const Values& config) { return kernel.space.describe(config); }, trace};
}

void until(const std::function<bool()>& is_so) {
  while (!is_so()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

struct Queue {
  Bench bench;
  KernelDefinition kernel = doubling({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  Target target{Target::Kind::host, "generic"};
  TraceLog trace;
  BuildQueue queue = queue_of(bench, kernel, target, trace);
};

}  // namespace

TEST_CASE("builds come back in the order submitted, however long they take", "[runtime][queue]") {
  Queue q;
  q.bench.compiler->on_compile = [](const codegen::Source& source) {
    if (source.entry == "k<1, 0>") std::this_thread::sleep_for(std::chrono::milliseconds(30));
  };
  for (int a = 1; a <= 12; ++a) q.queue.submit(static_cast<std::size_t>(a), {a, 0});
  std::vector<std::size_t> seen;
  for (const std::size_t count : {5, 4, 9}) {
    const auto group = q.queue.take(count, {});
    CHECK(group.size() == std::min<std::size_t>(count, 12 - seen.size()));
    for (const auto& finished : group) {
      CHECK(finished.build.binary());
      seen.push_back(finished.id);
    }
  }
  CHECK(seen == std::vector<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(q.queue.in_flight() == 0);
  CHECK(q.queue.take(3, {}).empty());
  CHECK(q.trace.take().size() == 12);
}

TEST_CASE("a failed compile is a value, a failing compiler an exception", "[runtime][queue]") {
  Queue q;
  q.bench.of(2).compile_log = "no";
  q.queue.submit(0, {2, 0});
  const auto group = q.queue.take(1, {});
  REQUIRE(group.size() == 1);
  CHECK_FALSE(group[0].build.binary());

  q.bench.compiler->on_compile = [](const codegen::Source&) {
    throw EnvironmentError("the compiler is gone");
  };
  q.queue.submit(1, {3, 0});
  CHECK_THROWS_AS(q.queue.take(1, {}), EnvironmentError);
}

TEST_CASE("a thread that waits may be told to stop", "[runtime][queue]") {
  Queue q;
  std::atomic<bool> open{false};
  q.bench.compiler->on_compile = [&](const codegen::Source& source) {
    while (!open && source.entry != "k<1, 0>")
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  for (int a = 1; a <= 3; ++a) q.queue.submit(static_cast<std::size_t>(a), {a, 0});
  CHECK(q.queue.take(1, {}).size() == 1);
  std::stop_source source;
  source.request_stop();
  CHECK(q.queue.take(2, source.get_token()).empty());
  CHECK(q.queue.in_flight() == 2);
  open = true;
  CHECK(q.queue.take(2, {}).size() == 2);
}

TEST_CASE("what has not begun is dropped with the queue", "[runtime][queue]") {
  Bench bench;
  const KernelDefinition kernel = doubling({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const Target target{Target::Kind::host, "generic"};
  std::atomic<bool> open{false};
  bench.compiler->on_compile = [&](const codegen::Source&) {
    while (!open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  TraceLog trace;
  std::jthread opener;
  {
    BuildQueue queue = queue_of(bench, kernel, target, trace);
    for (int a = 1; a <= 12; ++a) queue.submit(static_cast<std::size_t>(a), {a, 0});
    while (bench.compiler->compiles < 4) std::this_thread::yield();
    opener = std::jthread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      open = true;
    });
  }
  CHECK(bench.compiler->compiles == 4);  // one per worker
}

TEST_CASE("what takes long is not waited for where any build will do", "[runtime][queue]") {
  Queue q;
  std::atomic<bool> open{false};
  q.bench.compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry == "k<1, 0>" || source.entry == "k<3, 0>") until([&] { return open.load(); });
  };
  for (int a = 1; a <= 6; ++a) q.queue.submit(static_cast<std::size_t>(a), {a, 0});
  const auto ids = [](const auto& group) {
    std::vector<std::size_t> all;
    for (const auto& finished : group) all.push_back(finished.id);
    return all;
  };
  CHECK(ids(q.queue.take_any(4, 9, {}, {})) == std::vector<std::size_t>{2, 4, 5, 6});
  CHECK(q.queue.in_flight() == 2);
  CHECK(q.queue.take_any(1, 9, {}, TimeLimit::already_passed()).empty());
  open = true;
  CHECK(ids(q.queue.take_any(9, 1, {}, {})) == std::vector<std::size_t>{1});  // all are waited for
  CHECK(ids(q.queue.take(9, {})) == std::vector<std::size_t>{3});
  CHECK(q.queue.take_any(1, 9, {}, {}).empty());
}

TEST_CASE("builds that have begun go on where their crew outlives the queue", "[runtime][queue]") {
  Bench bench;
  const KernelDefinition kernel = doubling({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const Target target{Target::Kind::host, "generic"};
  bench.builder.build(kernel, Values{12, 0}, target);  // before that, none would be left
  bench.compiler->compiles = 0;
  std::atomic<bool> open{false};
  bench.compiler->on_compile = [&](const codegen::Source&) { until([&] { return open.load(); }); };
  {
    TraceLog trace;
    BuildQueue queue = queue_of(bench, kernel, target, trace, &bench.builder.crew());
    for (int a = 1; a <= 12; ++a) queue.submit(static_cast<std::size_t>(a), {a, 0});
    until([&] { return bench.compiler->compiles == 4; });
  }  // returns: nothing is open
  TraceLog trace;
  BuildQueue next = queue_of(bench, kernel, target, trace, &bench.builder.crew());
  for (int a = 1; a <= 4; ++a) next.submit(static_cast<std::size_t>(a), {a, 0});
  open = true;
  for (const auto& finished : next.take(4, {})) CHECK(finished.build.binary());
  CHECK(next.in_flight() == 0);
  CHECK(bench.compiler->compiles == 4);  // what had begun, once; nothing of the rest
}

TEST_CASE("a crew runs as much at once as each job allows, in order", "[runtime][queue]") {
  std::mutex mutex;
  std::vector<int> begun;
  unsigned running = 0, most = 0, highest = 0;
  std::atomic<bool> open{false};
  BuildCrew crew;
  const auto submit = [&](unsigned limit, int number) {
    crew.submit(limit, [&, number](unsigned worker) {
      {
        const std::lock_guard lock(mutex);
        begun.push_back(number);
        most = std::max(most, ++running);
        highest = std::max(highest, worker);
      }
      until([&] { return open.load(); });
      const std::lock_guard lock(mutex);
      --running;
    });
  };
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return begun.size();
  };
  for (int i = 0; i < 3; ++i) submit(3, i);
  until([&] { return count() == 3; });
  for (int i = 3; i < 6; ++i) submit(2, i);
  CHECK(count() == 3);
  // Two jobs that begin together may write their numbers in either order. One at a time may not.
  for (int i = 6; i < 12; ++i) submit(1, i);
  open = true;
  until([&] { return count() == 12; });
  {
    const std::lock_guard lock(mutex);
    CHECK(most == 3);
    CHECK(std::is_sorted(begun.begin() + 6, begun.end()));
    CHECK(*std::max_element(begun.begin() + 3, begun.begin() + 6) == 5);
  }
  for (int round = 0; round < 20; ++round) {  // threads end, and others begin
    submit(2, 12 + round);
    until([&] { return count() == static_cast<std::size_t>(13 + round); });
  }
  const std::lock_guard lock(mutex);
  CHECK(highest == 2);
}

TEST_CASE("a crew drops what has not begun", "[runtime][queue]") {
  std::atomic<int> begun{0};
  std::atomic<bool> open{false};
  std::jthread opener;
  {
    BuildCrew crew;
    for (int i = 0; i < 10; ++i)
      crew.submit(2, [&](unsigned) {
        ++begun;
        until([&] { return open.load(); });
      });
    until([&] { return begun == 2; });
    opener = std::jthread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      open = true;
    });
  }
  CHECK(begun == 2);
}

TEST_CASE("a build has the priority of the thread that asks for it", "[runtime][queue]") {
  std::atomic<int> low{0}, usual{0};
  Bench bench;
  const auto submit = [&](std::atomic<int>& priority, BuildCrew& crew) {
    crew.submit(1, [&](unsigned) {
      priority = getpriority(PRIO_PROCESS, 0) + 1;
      until([&] { return low != 0 && usual != 0; });  // both at once
    });
  };
  const int before = getpriority(PRIO_PROCESS, 0);
  std::jthread([&] {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), before + 3);
    submit(low, bench.builder.crew());
  }).join();
  submit(usual, bench.builder.crew());
  until([&] { return low != 0 && usual != 0; });
  CHECK(low == before + 4);
  CHECK(usual == before + 1);
}

TEST_CASE("a fork of the process builds by itself, and lets go a crew that is waited for",
          "[runtime][queue]") {
  auto crew = std::make_unique<BuildCrew>();
  std::atomic<bool> begun{false}, may_end{false};
  crew->submit(1, [&](unsigned) {
    begun = true;
    until([&] { return may_end.load(); });
  });
  until([&] { return begun.load(); });
  std::jthread waiting([&] { crew->wait(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it waits now
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    bool built = false;
    crew->submit(1, [&](unsigned) { built = true; });
    crew->wait();
    crew.reset();
    ::_exit(built ? 0 : 1);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  may_end = true;
  waiting.join();
}
