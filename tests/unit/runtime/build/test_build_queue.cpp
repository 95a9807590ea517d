#include <thread>

#include "kiln_test.hpp"
#include "runtime/build/build_queue.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using namespace kiln::runtime;
using kiln::test::Bench;
using kiln::test::doubling;

namespace {

BuildQueue queue_of(Bench& bench, const KernelDefinition& kernel, const Target& target,
                    TraceLog& trace) {
  return {bench.builder.threads(),
          [&](const Values& config) { return bench.builder.build(kernel, config, target); },
          [&](const Values& config) { return kernel.space.describe(config); }, trace};
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
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      open = true;
    });
  }
  CHECK(bench.compiler->compiles == 4);  // one per worker
}
