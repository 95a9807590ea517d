// Calls that take longer than a candidate may: told of while they run, rejected when they return,
// and not made again. Nothing can end them.
#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>

#include "function_fixture.hpp"
#include "kiln/communicators.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// Seconds: so long that a disturbed machine reaches them in no call of the others.
const double kLimit = patient(1);
constexpr SumKnobs kLate{8, Method::tree};

const Candidate& candidate(const TuneResult& result, const Values& config) {
  for (const Candidate& c : result.candidates)
    if (c.config == config) return c;
  throw std::runtime_error("no such candidate");
}

/// A caller whose kLate would win, but does not return before it has been told of.
struct Late : Caller {
  explicit Late(const fs::path& directory) : Caller(directory) {
    seconds[{8, Method::tree}] = 1e-6;
    seconds[{4, Method::ring}] = 1e-4;
    options.tuning.candidate_seconds = kLimit;
    work = [this](const SumKnobs& k, std::vector<float>&) {
      if (!(k == kLate)) return;
      if (!becomes([&] { return said(LogLevel::warning, "has taken") > 0; })) return;
      if (meanwhile) meanwhile();
    };
  }
  std::function<void()> meanwhile;  ///< in the late call, once it has been told of
};

}  // namespace

TEST_CASE("a call that takes too long is told of while it runs, and is hung when it returns",
          "[runtime][function]") {
  Directory directory;
  Late caller(directory.path());
  caller.device->on_cpu = GENERATE(false, true);
  const Runtime runtime = caller.runtime();
  std::string overdue;
  double so_far = 0;
  std::thread::id told_on;
  caller.options.tuning.progress = [&](const TuneProgress& now) {
    if (now.overdue.empty()) return;
    overdue = now.overdue;
    so_far = now.overdue_seconds;
    told_on = std::this_thread::get_id();
  };
  std::optional<TuneResult> on_record;
  std::uint64_t now_overdue = 0;
  caller.meanwhile = [&] {
    now_overdue = runtime.metrics().overdue_calls;
    on_record = Caller(directory.path()).tuned(caller.sum()).known({5});
  };
  FunctionOptions options;
  options.tuning = caller.options.tuning;
  std::vector<float> x(1, 0.0f);
  const TuneResult result = kiln::tuned(runtime, caller.sum(), options).tune({}, x, 5);

  CHECK(overdue == "blocks=8,method=tree");
  CHECK(so_far >= kLimit);
  CHECK(told_on != std::this_thread::get_id());
  CHECK(caller.said(LogLevel::warning, "sum n=5 with blocks=8,method=tree: it has taken") >= 1);
  CHECK(caller.said(LogLevel::warning, "it has ended after") == 1);
  CHECK(now_overdue == 1);
  CHECK(runtime.metrics().overdue_calls == 0);
  CHECK(runtime.metrics().overdue_calls_total == 1);
  CHECK(runtime.metrics().candidates_total.at({"hung"}) == 1);
  // A process that had to be ended in the call would have left this.
  REQUIRE(on_record);
  CHECK(candidate(*on_record, {8, 1}).status == CandidateStatus::hung);
  CHECK(on_record->winner().status == CandidateStatus::measured);
  CHECK_FALSE(on_record->complete);

  CHECK(result.winner().config == Values{4, 0});
  CHECK(candidate(result, {8, 1}).status == CandidateStatus::hung);
  CHECK(candidate(result, {8, 1}).reason.find("s is the limit") != std::string::npos);
  CHECK(caller.calls[std::pair(8, Method::tree)] == 1);

  // Nor does another process call it.
  Caller next(directory.path());
  CHECK(next.tuned(next.sum()).tune({}, x, 5).winner().config == Values{4, 0});
  CHECK(next.total() == 0);
}

TEST_CASE("a call that hangs after it has been measured does not win", "[runtime][function]") {
  Directory directory;
  Late caller(directory.path());
  const auto hang = std::exchange(caller.work, {});
  caller.work = [&](const SumKnobs& k, std::vector<float>& x) {
    if (caller.calls[std::pair(8, Method::tree)] > 3) hang(k, x);
  };
  std::vector<float> x(1, 0.0f);
  const TuneResult result = caller.tuned(caller.sum()).tune({}, x, 5);
  CHECK(result.winner().config == Values{4, 0});
  CHECK(candidate(result, {8, 1}).status == CandidateStatus::hung);
}

TEST_CASE("a call that is late and then throws is rejected for what it throws",
          "[runtime][function]") {
  Directory directory;
  Late caller(directory.path());
  caller.meanwhile = [] { throw std::runtime_error("gave up"); };
  std::vector<float> x(1, 0.0f);
  const TuneResult result = caller.tuned(caller.sum()).tune({}, x, 5);
  CHECK(result.winner().config == Values{4, 0});
  CHECK(candidate(result, {8, 1}).status == CandidateStatus::launch_failed);
  CHECK(candidate(result, {8, 1}).reason == "gave up");
  CHECK(caller.said(LogLevel::warning, "it has ended after") == 1);
}

TEST_CASE("exceptions of a program that is told of a late call do not end it",
          "[runtime][function]") {
  Directory directory;
  Late caller(directory.path());
  caller.options.tuning.progress = [&](const TuneProgress& now) {
    if (!now.overdue.empty()) throw std::runtime_error("no such window");
  };
  std::vector<float> x(1, 0.0f);
  const TuneResult result = caller.tuned(caller.sum()).tune({}, x, 5);
  CHECK(candidate(result, {8, 1}).status == CandidateStatus::hung);
}

TEST_CASE("a call that is late on one rank costs all ranks that candidate, and not the job",
          "[runtime][function][ranks]") {
  Directory directory;
  const bool communicates = GENERATE(false, true);
  auto ends = thread_communicators(2);
  std::vector<std::unique_ptr<Late>> ranks;
  for (std::size_t r = 0; r < 2; ++r) {
    auto& rank = ranks.emplace_back(
        std::make_unique<Late>(directory.path() / ("store" + std::to_string(r))));
    rank->options.tuning.ranks = std::move(ends[r]);
    rank->options.tuning.together.first_seconds = rank->options.tuning.together.step_seconds = 60;
    if (r == 0) rank->work = {};
  }
  std::vector<TuneResult> results(2);
  std::vector<std::string> thrown(2);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      Sum sum = ranks[r]->sum();
      sum.communicates = communicates;
      std::vector<float> x(1, 0.0f);
      try {
        results[r] = ranks[r]->tuned(sum).tune({}, x, 5);
      } catch (const std::exception& error) {
        thrown[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : thrown) CHECK(text == "");
  for (const TuneResult& result : results) {
    REQUIRE_FALSE(result.candidates.empty());
    REQUIRE(result.agreed);
    CHECK(result.agreed->outcome == RankReport::Outcome::plan);
    CHECK(result.winner().config == Values{4, 0});
  }
  CHECK(results[0].agreed->plan_digest == results[1].agreed->plan_digest);
  CHECK(candidate(results[1], {8, 1}).status == CandidateStatus::hung);
}

TEST_CASE("results that are wrong now and then disqualify, however fast the call",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{8, Method::tree}] = 1e-6;
  caller.seconds[{4, Method::ring}] = 1e-4;
  Sum sum = caller.sum();
  bool right = true;
  caller.work = [&](const SumKnobs& k, std::vector<float>&) {
    right = !(k == kLate) || caller.calls[std::pair(8, Method::tree)] % 3 != 0;
  };
  sum.verify = [&](std::vector<float>&, int) { return right; };
  std::vector<float> x(1, 0.0f);
  const TuneResult result = caller.tuned(sum).tune({}, x, 5);
  CHECK(result.winner().config == Values{4, 0});
  CHECK(candidate(result, {8, 1}).status == CandidateStatus::wrong_result);
  CHECK(candidate(result, {8, 1}).reason.find("right at first, but wrong while it was timed") !=
        std::string::npos);
}
