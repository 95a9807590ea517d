// Kernels in steps on the host device: built, recorded, shipped and launched as one.
#include <algorithm>
#include <array>
#include <filesystem>
#include <thread>

#include "host_test.hpp"
#include "split_sum.hpp"
#include "temporary_directory.hpp"

using namespace kiln::test;
using host_test::contains;

namespace {

kiln::RuntimeOptions stored_in(const std::filesystem::path& directory) {
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.directory = directory;
  return options;
}

/// The mistakes of a kernel that cannot be tuned.
std::string reasons(const kiln::Runtime& runtime, const kiln::KernelDefinition& kernel) {
  try {
    runtime.tuned(kernel).tune({1000});
  } catch (const kiln::TuningFailedError& error) {
    std::string text;
    for (const auto& reason : error.reasons()) text += reason.reason + "\n";
    return text;
  }
  return {};
}

}  // namespace

TEST_CASE("a config's steps run after its entry, in their order", "[host][steps]") {
  const TemporaryDirectory store;
  const kiln::Runtime runtime(stored_in(store.path()));
  const auto handle = runtime.tuned(split_sum()).with_config(with_mode(SumMode::steps));
  for (const std::size_t n : {1u, 31u, 1000u, 3000u})
    CHECK(launched_sum(runtime, handle, n) == sum_of_counting(n));
  const auto bound = handle.at({777});
  auto in = runtime.array(counting(777));
  auto out = runtime.array(std::vector<float>{-7});
  for (int i = 0; i < 2; ++i) bound({}, out.data(), static_cast<const float*>(in.data()), 777);
  CHECK(out.download().front() == sum_of_counting(777));
}

TEST_CASE("a step whose grid is empty is skipped; without the entry none runs", "[host][steps]") {
  const TemporaryDirectory store;
  const kiln::Runtime runtime(stored_in(store.path()));
  auto kernel = split_sum();
  kernel.steps[1].launch = [](auto, auto p) { return kiln::Launch{{p[0] > 10 ? 1u : 0u}, {1}}; };
  const auto handle = runtime.tuned(kernel).with_config(with_mode(SumMode::steps));
  CHECK(launched_sum(runtime, handle, 11) == 66);
  CHECK(launched_sum(runtime, handle, 10) == -7);
  CHECK(launched_sum(runtime, handle, 0) == -7);
}

TEST_CASE("a winner in steps is on record, and read back without a compiler", "[host][steps]") {
  const TemporaryDirectory folder;
  auto kernel = split_sum({1});
  {
    const kiln::Runtime runtime(stored_in(folder.path() / "store"));
    const kiln::TuneResult result = runtime.tuned(kernel).tune({1000});
    CHECK(result.winner().config == with_mode(SumMode::steps));
    CHECK(result.winner().status == kiln::CandidateStatus::measured);
    CHECK(runtime.statistics().compiled == 1);
  }
  kiln::RuntimeOptions again = stored_in(folder.path() / "store");
  again.mode = kiln::Mode::lookup_only;
  {
    const kiln::Runtime runtime(again);
    const auto handle = runtime.tuned(kernel);
    CHECK(handle.known({1000}).has_value());
    CHECK(launched_sum(runtime, handle, 1000) == sum_of_counting(1000));
  }
  // Another launch of a step is another candidate.
  kernel.steps[0].launch = [](auto c, auto) {
    return kiln::Launch{{static_cast<unsigned>(c[0])}, {1}};
  };
  const kiln::Runtime runtime(again);
  CHECK_FALSE(runtime.tuned(kernel).known({1000}).has_value());
}

TEST_CASE("a bundle has all entries of a kernel in steps", "[host][steps]") {
  const TemporaryDirectory folder;
  const auto bundle = folder.path() / "kernels.kiln";
  kiln::PrecompileJob job;
  job.kernel = split_sum();
  job.problem = {1000};
  job.targets = {kiln::Target::this_host()};
  const kiln::PrecompileReport shipped = kiln::precompile({job}, bundle, {});
  CHECK(shipped.failures.empty());
  kiln::RuntimeOptions options = stored_in(folder.path() / "none");
  options.mode = kiln::Mode::frozen;
  options.store.roots = {bundle};
  const kiln::Runtime runtime(options);
  const auto handle = runtime.tuned(job.kernel);
  for (const SumMode mode : {SumMode::plain, SumMode::steps, SumMode::last})
    CHECK(launched_sum(runtime, handle.with_config(with_mode(mode)), 1000) ==
          sum_of_counting(1000));
  CHECK(runtime.statistics().compiled == 0);
}

TEST_CASE("a step that does not compile fails its candidate, with the log", "[host][steps]") {
  const TemporaryDirectory store;
  const kiln::Runtime runtime(stored_in(store.path()));
  auto kernel = split_sum({1});
  kernel.steps[1].entry = "add_blokcs";
  const std::string missing = reasons(runtime, kernel);
  CHECK_THAT(missing, contains("has no function add_blokcs; did you mean add_blocks?"));
  CHECK_THAT(missing, contains("compile_failed"));

  kernel = split_sum({1});
  kernel.source.text += R"(
template <int blocks, int mode> __global__ void broken(float*, const float*, int, kiln::Workspace) {
  undeclared();
})";
  kernel.steps[1].entry = "broken";
  CHECK_THAT(reasons(runtime, kernel), contains("undeclared"));

  kernel = split_sum({1});
  kernel.source.text +=
      "template <int blocks, int mode> __global__ void other(float*, const float*, int) {}";
  kernel.steps[1].entry = "other";
  CHECK_THAT(reasons(runtime, kernel), contains("the launch expects other<4, 1> to be a"));
}

TEST_CASE("the launch of a step is checked as that of the entry", "[host][steps]") {
  const TemporaryDirectory store;
  const kiln::Runtime runtime(stored_in(store.path()));
  auto kernel = split_sum({0, 1});
  kernel.steps[0].launch = [](auto, auto) { return kiln::Launch{{1}, {2048}}; };
  const auto handle = runtime.tuned(kernel);
  CHECK(handle.tune({1000}).candidates.size() == 1);
  CHECK_THROWS_WITH(launched_sum(runtime, handle.with_config(with_mode(SumMode::steps)), 1000),
                    contains("step `add_threads`: ") && contains("2048"));

  // What only its compiler knows.
  kernel = split_sum({0, 1});
  kernel.source.text += R"(
template <int blocks, int mode> __global__ void __launch_bounds__(16)
narrow(float*, const float*, int, kiln::Workspace) {})";
  kernel.steps[0].entry = "narrow";
  const kiln::TuneResult result = runtime.tuned(kernel).tune({1000});
  const auto other =
      std::find_if(result.candidates.begin(), result.candidates.end(),
                   [](const kiln::Candidate& c) { return c.config == with_mode(SumMode::steps); });
  REQUIRE(other != result.candidates.end());
  CHECK(other->status == kiln::CandidateStatus::exceeds_limits);
  CHECK_THAT(other->reason, contains("step `narrow`: ") && contains("__launch_bounds__"));
}

TEST_CASE("ranks choose together among kernels in steps", "[host][steps]") {
  const TemporaryDirectory folder;
  auto ranks = kiln::thread_communicators(2);
  std::array<std::string, 2> digests, errors;
  std::array<kiln::Values, 2> winners;
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      try {
        kiln::RuntimeOptions options = stored_in(folder.path() / std::to_string(r));
        options.tuning.ranks = std::move(ranks[r]);
        const kiln::Runtime runtime(options);
        const kiln::TuneResult result = runtime.tuned(split_sum({0, 1, 2, 3})).tune({1000});
        digests[r] = result.agreed->plan_digest;
        winners[r] = result.winner().config;
        for (const kiln::Candidate& c : result.candidates)
          if (c.config == with_mode(SumMode::littered) &&
              c.reason.find("semaphores nonzero") == std::string::npos)
            errors[r] = "a candidate that litters: " + c.reason;
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(errors[0] == "");
  CHECK(errors[1] == "");
  CHECK_FALSE(digests[0].empty());
  CHECK(digests[0] == digests[1]);
  CHECK(winners[0] == winners[1]);
}
