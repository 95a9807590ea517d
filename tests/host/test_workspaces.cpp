// Workspaces on the host device: tuning with them, growth, the program's memory, threads, and the
// program's allocator.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "host_test.hpp"
#include "split_sum.hpp"
#include "temporary_directory.hpp"

using namespace kiln::test;
using host_test::contains;
using kiln::Candidate;
using kiln::CandidateStatus;
using kiln::Stream;

namespace {

kiln::RuntimeOptions in_memory(kiln::Allocator allocator = {}) {
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  options.allocator = std::move(allocator);
  return options;
}

const Candidate& with(const kiln::TuneResult& result, SumMode mode) {
  const auto found = std::find_if(result.candidates.begin(), result.candidates.end(),
                                  [&](const Candidate& c) { return c.config == with_mode(mode); });
  REQUIRE(found != result.candidates.end());
  return *found;
}

}  // namespace

TEST_CASE("candidates with workspaces are right, or say what they did to theirs",
          "[host][workspace]") {
  const kiln::Runtime runtime(in_memory());
  const auto handle = runtime.tuned(split_sum({0, 1, 2, 3, 4}));
  const kiln::TuneResult result = handle.tune({1000});
  for (const SumMode mode : {SumMode::plain, SumMode::steps, SumMode::last}) {
    INFO(with(result, mode).reason);
    CHECK(with(result, mode).status == CandidateStatus::measured);
  }
  const Candidate& littered = with(result, SumMode::littered);
  CHECK(littered.status == CandidateStatus::wrong_result);
  CHECK(littered.reason == "left 1 of 1 semaphores nonzero");
  // 132 partial sums and a place of 1000 are inside; 33 * 4 = 132 partial sums are all there is.
  const Candidate& inside = with(result, SumMode::outside);
  CHECK(inside.status == CandidateStatus::measured);
  const kiln::TuneResult small = handle.tune({100});
  const Candidate& outside = with(small, SumMode::outside);
  CHECK(outside.status == CandidateStatus::wrong_result);
  CHECK(outside.reason == "wrote outside its 528 bytes of scratch: byte 528");
}

TEST_CASE("a launch after a kernel that trapped is right", "[host][workspace]") {
  const kiln::Runtime runtime(in_memory());
  auto kernel = split_sum({2});
  std::string& text = kernel.source.text;
  text.insert(text.find("  if (mode == steps) return;"),
              "  if (n == 77 && blockIdx.x == 3) __trap();\n");
  const auto handle = runtime.tuned(kernel).with_config(with_mode(SumMode::last));
  for (int i = 0; i < 3; ++i) {
    CHECK(launched_sum(runtime, handle, 100) == sum_of_counting(100));
    CHECK_THROWS_WITH(launched_sum(runtime, handle, 77), contains("__trap()"));
  }
  CHECK(launched_sum(runtime, handle, 100) == sum_of_counting(100));
}

TEST_CASE("verify() of a handle looks at the workspace", "[host][workspace]") {
  const kiln::Runtime runtime(in_memory());
  const auto handle = runtime.tuned(split_sum({0, 1, 2, 3}));
  CHECK(handle.with_config(with_mode(SumMode::last)).verify({1000}).right);
  CHECK(handle.with_config(with_mode(SumMode::steps)).verify({1000}).right);
  const kiln::Verification littered =
      handle.with_config(with_mode(SumMode::littered)).verify({1000});
  CHECK_FALSE(littered.right);
  CHECK(littered.why == "left 1 of 1 semaphores nonzero");
}

TEST_CASE("a workspace grows with the problem and is reused below", "[host][workspace]") {
  CountingPool pool;
  {
    const kiln::Runtime runtime(in_memory(pool.allocator()));
    const auto handle = runtime.tuned(split_sum()).with_config(with_mode(SumMode::last));
    for (const std::size_t n : {100u, 1000u, 3000u, 100u, 3000u, 1u}) {
      CHECK(launched_sum(runtime, handle, n) == sum_of_counting(n));
      CHECK(launched_sum(runtime, handle, n) == sum_of_counting(n));
    }
    CHECK(handle.workspace_size({1000}) == kiln::WorkspaceSize{4000, 1});
    // Three sizes of workspace, each of which stays valid.
    CHECK(pool.live.size() == 3);
    CHECK(launched_sum(runtime, handle, 0) == -7);  // nothing is launched
  }
  CHECK(pool.live.empty());
  CHECK(pool.misuse.empty());
}

namespace {

kiln::Manifest sums_of(const kiln::Runtime& runtime, const std::vector<std::int64_t>& sizes) {
  kiln::Manifest manifest;
  for (const std::int64_t n : sizes)
    manifest.wanted.push_back({"split_sum", {}, runtime.device().target.arch, {{"n", n}}, {}});
  return manifest;
}

}  // namespace

TEST_CASE("launches on streams that were named to prepare allocate nothing", "[host][workspace]") {
  CountingPool pool;
  std::string log;
  kiln::RuntimeOptions options = in_memory(pool.allocator());
  options.log = [&](kiln::LogLevel level, std::string_view text) {
    if (level == kiln::LogLevel::warning) log += text;
  };
  const kiln::Runtime runtime(options);
  const auto handle = runtime.tuned(split_sum()).with_config(with_mode(SumMode::last));
  const kiln::Manifest manifest = sums_of(runtime, {100, 3000, 1000});
  const bool named = GENERATE(true, false);
  const auto unprepared =
      GENERATE(kiln::OnUnprepared::error, kiln::OnUnprepared::warn, kiln::OnUnprepared::serve);
  kiln::PrepareOptions how{.work = kiln::PrepareWork::compile};
  if (named) how.streams = {Stream{}};
  REQUIRE(runtime.prepare(manifest, how).complete());
  CHECK(pool.live.size() == (named ? 1 : 0));
  runtime.seal(unprepared);

  const bool refused = !named && unprepared == kiln::OnUnprepared::error;
  for (const std::size_t n : {100u, 3000u, 1000u})
    if (refused)
      CHECK_THROWS_AS(launched_sum(runtime, handle, n), kiln::UnpreparedError);
    else
      CHECK(launched_sum(runtime, handle, n) == sum_of_counting(n));
  const std::uint64_t allocations = runtime.metrics().workspace_allocations_total;
  CHECK(allocations == (named ? 0u : refused ? 3u : 2u));  // 3000 follows 100
  CHECK(pool.live.size() == (refused ? 0u : named ? 1u : 2u));
  const bool warns = !named && unprepared == kiln::OnUnprepared::warn;
  CHECK(contains("has no workspace of 528 bytes and 1 semaphore, and the runtime is sealed")
            .match(log) == warns);
  if (refused) {
    CHECK_THROWS_WITH(launched_sum(runtime, handle, 100), contains("PrepareOptions::streams"));
    handle.at({3000}).reserve_workspace({});  // an explicit call
    CHECK(launched_sum(runtime, handle, 3000) == sum_of_counting(3000));
    runtime.unseal();
    CHECK(launched_sum(runtime, handle, 100) == sum_of_counting(100));
  }
}

TEST_CASE("prepare tells of workspaces that cannot be had", "[host][workspace]") {
  CountingPool pool;
  pool.most = 256 + 2000;
  const kiln::Runtime runtime(in_memory(pool.allocator()));
  const auto handle = runtime.tuned(split_sum()).with_config(with_mode(SumMode::last));
  const kiln::PrepareReport report = runtime.prepare(
      sums_of(runtime, {400, 3000}), {.work = kiln::PrepareWork::compile, .streams = {Stream{}}});
  REQUIRE(report.problems.size() == 2);
  CHECK(report.problems[0].state == kiln::PreparedState::known);
  CHECK(report.problems[1].state == kiln::PreparedState::failed);
  CHECK_THAT(report.problems[1].why, contains("a workspace of"));
  CHECK_FALSE(report.complete());
  runtime.seal(kiln::OnUnprepared::error);
  CHECK(launched_sum(runtime, handle, 400) == sum_of_counting(400));
}

TEST_CASE("a config without a workspace needs none", "[host][workspace]") {
  CountingPool pool;
  const kiln::Runtime runtime(in_memory(pool.allocator()));
  const auto handle = runtime.tuned(split_sum()).with_config(with_mode(SumMode::plain));
  CHECK(launched_sum(runtime, handle, 1000) == sum_of_counting(1000));
  CHECK(handle.workspace_size({1000}) == kiln::WorkspaceSize{});
  CHECK(pool.live.empty());
}

TEST_CASE("a program supplies the memory of workspaces", "[host][workspace]") {
  CountingPool pool;
  const kiln::Runtime runtime(in_memory(pool.allocator()));
  const auto handle = runtime.tuned(split_sum()).with_config(with_mode(SumMode::last));
  const kiln::WorkspaceSize size = max(handle.workspace_size({100}), handle.workspace_size({1000}));
  CHECK(size.total() == 256 + 4000);
  alignas(256) std::byte memory[256 + 4000 + 1];
  std::fill(std::begin(memory), std::end(memory), std::byte{0x77});
  handle.use_workspace({}, memory, size);
  for (const std::size_t n : {100u, 1000u, 100u})
    CHECK(launched_sum(runtime, handle, n) == sum_of_counting(n));
  CHECK(memory[256 + 4000] == std::byte{0x77});
  CHECK(pool.live.empty());
  CHECK_THROWS_WITH(
      launched_sum(runtime, handle, 1001),
      contains("4000 bytes and 1 semaphore,") && contains("needs 4004 bytes and 1 semaphore"));
  CHECK_THROWS_WITH(handle.use_workspace({}, memory + 8, size),
                    contains("not aligned to 256 bytes"));
  SECTION("taken back") { handle.use_workspace({}, nullptr, {}); }
  SECTION("released") { handle.release_workspace({}); }
  CHECK(launched_sum(runtime, handle, 1001) == sum_of_counting(1001));
  CHECK(pool.live.size() == 1);
}

TEST_CASE("a bound kernel reserves its workspace", "[host][workspace]") {
  CountingPool pool;
  const kiln::Runtime runtime(in_memory(pool.allocator()));
  const auto handle = runtime.tuned(split_sum()).with_config(with_mode(SumMode::steps));
  const auto bound = handle.at({500});
  CHECK(bound.workspace_size() == kiln::WorkspaceSize{2000, 0});
  CHECK(pool.allocations == 0);
  bound.reserve_workspace({});
  CHECK(pool.allocations == 1);
  auto in = runtime.array(counting(500));
  auto out = runtime.array(std::vector<float>{0});
  const std::size_t before = pool.allocations;
  for (int i = 0; i < 3; ++i) bound({}, out.data(), static_cast<const float*>(in.data()), 500);
  CHECK(out.download().front() == sum_of_counting(500));
  CHECK(pool.allocations == before);
}

TEST_CASE("threads that launch at the same time do not share a workspace", "[host][workspace]") {
  const kiln::Runtime runtime(in_memory());
  const auto handle = runtime.tuned(split_sum()).with_config(with_mode(SumMode::last));
  CHECK(launched_sum(runtime, handle, 4000) == sum_of_counting(4000));  // compiles
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 200; ++i) {
        const std::size_t n = 1000 + 700 * t + i;
        if (launched_sum(runtime, handle, n) != sum_of_counting(n)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("threads that launch one after the other need the memory of one", "[host][workspace]") {
  CountingPool pool;
  {
    const kiln::Runtime runtime(in_memory(pool.allocator()));
    const auto handle = runtime.tuned(split_sum()).with_config(with_mode(SumMode::last));
    int wrong = 0;
    for (int i = 0; i < 200; ++i)
      std::thread([&] {
        wrong += launched_sum(runtime, handle, 1000) != sum_of_counting(1000);
      }).join();
    CHECK(wrong == 0);
    CHECK(pool.live.size() == 1);
    handle.release_workspace({});  // this thread has none
    CHECK(launched_sum(runtime, handle, 1000) == sum_of_counting(1000));
    const std::size_t all = pool.live.size();
    CHECK(all <= 2);
    handle.release_workspace({});
    CHECK(pool.live.size() == all - 1);
    CHECK(launched_sum(runtime, handle, 1000) == sum_of_counting(1000));
    CHECK(pool.live.size() == all);
  }
  CHECK(pool.live.empty());
  CHECK(pool.misuse.empty());
}

TEST_CASE("an allocator that has no more memory is an error that names the bytes",
          "[host][allocator]") {
  CountingPool pool;
  pool.most = 150000;  // enough for arrays with their guard zones, not for the workspace below
  {
    const kiln::Runtime runtime(in_memory(pool.allocator()));
    auto kernel = split_sum({0, 2});
    const auto rule = kernel.workspace.size;
    kernel.workspace.size = [rule](auto c, auto p, const auto& limits) {
      auto size = rule(c, p, limits);
      size.bytes = 1 << 20;
      return size;
    };
    const auto handle = runtime.tuned(kernel);
    const kiln::TuneResult result = handle.tune({100});
    CHECK(result.winner().config == with_mode(SumMode::plain));
    CHECK(with(result, SumMode::last).status == CandidateStatus::not_tried);
    CHECK_FALSE(result.complete);
    CHECK_THAT(with(result, SumMode::last).reason,
               contains("a workspace of 1048832 bytes could not be allocated"));
    try {
      launched_sum(runtime, handle.with_config(with_mode(SumMode::last)), 100);
      FAIL("it was launched");
    } catch (const kiln::EnvironmentError& error) {
      CHECK_THAT(error.what(), contains("a workspace of 1048832 bytes"));
      CHECK_THAT(error.what(), contains("returned null for 1048832 bytes"));
    }
    CHECK_THROWS_AS(runtime.array<float>(1 << 20), kiln::EnvironmentError);
    pool.most = std::size_t{1} << 30;
    const kiln::TuneResult later = handle.tune({100});
    CHECK(with(later, SumMode::last).status == CandidateStatus::measured);
    CHECK(later.complete);
  }
  CHECK(pool.live.empty());
  CHECK(pool.misuse.empty());
}

TEST_CASE("an allocator's exceptions and misaligned memory are errors", "[host][allocator]") {
  std::size_t released = 0;
  alignas(256) static std::byte memory[4096];
  const auto array = [&](auto allocate) {
    const kiln::Runtime runtime(in_memory(
        {.allocate = allocate, .release = [&](void*, std::size_t bytes) { released += bytes; }}));
    runtime.array<float>(10);
  };
  CHECK_THROWS_WITH(array([](std::size_t) -> void* { throw std::runtime_error("pool is gone"); }),
                    contains("failed for 40 bytes") && contains("pool is gone"));
  CHECK(released == 0);
  CHECK_THROWS_WITH(array([](std::size_t) -> void* { return memory + 16; }),
                    contains("not aligned to 256 bytes"));
  CHECK(released == 40);
  CHECK_THROWS_WITH(kiln::Runtime(in_memory({.allocate = [](std::size_t) { return nullptr; }})),
                    contains("`release`"));
  CHECK_THROWS_WITH(kiln::Runtime(in_memory({.release = [](void*, std::size_t) {}})),
                    contains("`allocate`"));
}

TEST_CASE("a tuning returns all that it allocates", "[host][allocator]") {
  CountingPool pool;
  {
    const kiln::Runtime runtime(in_memory(pool.allocator()));
    runtime.tuned(split_sum({0, 1, 2, 3})).tune({1000});
    CHECK(pool.allocations > 8);
    // The winner's launchable has no memory yet.
    CHECK(pool.live.empty());
  }
  CHECK(pool.misuse.empty());
}

TEST_CASE("a workspace over the device's memory is rejected while planning", "[host][workspace]") {
  const kiln::Runtime runtime(in_memory());
  auto kernel = split_sum({0, 2});
  kernel.workspace.size = [](auto, auto, const kiln::DeviceLimits& limits) {
    return kiln::WorkspaceSize{.bytes = static_cast<std::size_t>(limits.memory_bytes),
                               .semaphores = 1};
  };
  const auto handle = runtime.tuned(kernel);
  const kiln::TuneResult result = handle.tune({1000});
  CHECK(result.winner().config == with_mode(SumMode::plain));
  CHECK(result.candidates.size() == 1);
  CHECK_THROWS_WITH(launched_sum(runtime, handle.with_config(with_mode(SumMode::last)), 1000),
                    contains("a workspace of ") && contains("but the device has"));
}

TEST_CASE("a region tunes kernels with workspaces and steps", "[host][workspace]") {
  const kiln::Runtime runtime(in_memory());
  const auto handle = runtime.tuned(split_sum());
  auto in = runtime.array(counting(1000));
  auto out = runtime.array(std::vector<float>{0});
  kiln::RegionOptions options;
  options.check = [&]() -> std::string {
    return out.download().front() == sum_of_counting(1000) ? "" : "wrong sum";
  };
  const auto result = kiln::tune_region(
      runtime,
      [&](kiln::Region& region) {
        region(handle, {}, {1000}, out.data(), static_cast<const float*>(in.data()), 1000);
      },
      options);
  REQUIRE(result.sites.size() == 1);
  std::size_t measured = 0;
  for (const Candidate& c : result.sites.front().tuned.candidates)
    measured += c.status == CandidateStatus::measured;
  CHECK(measured == 3);
}

TEST_CASE("a region rejects candidates that leave semaphores nonzero, and puts the workspace right",
          "[host][workspace]") {
  const kiln::Runtime runtime(in_memory());
  const auto handle = runtime.tuned(split_sum({2, 0, 3}));
  auto in = runtime.array(counting(1000));
  auto out = runtime.array(std::vector<float>{0});
  kiln::RegionOptions options;
  options.before = [&] { out.upload(std::vector<float>{-1}); };
  options.check = [&]() -> std::string {
    return out.download().front() == sum_of_counting(1000) ? "" : "wrong sum";
  };
  const auto result = kiln::tune_region(
      runtime,
      [&](kiln::Region& region) {
        region(handle, {}, {1000}, out.data(), static_cast<const float*>(in.data()), 1000);
      },
      options);
  const kiln::TuneResult& tuned = result.sites.at(0).tuned;
  CHECK(with(tuned, SumMode::littered).status == CandidateStatus::wrong_result);
  CHECK_THAT(with(tuned, SumMode::littered).reason,
             contains("left 1 of its workspace's semaphores nonzero"));
  CHECK(with(tuned, SumMode::last).status == CandidateStatus::measured);
  CHECK(with(tuned, SumMode::plain).status == CandidateStatus::measured);
  // The loader of this handle has launched all of them.
  handle.tune({1000});
  CHECK(launched_sum(runtime, handle, 1000) == sum_of_counting(1000));
}
