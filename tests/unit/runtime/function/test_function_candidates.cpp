// Knobs that fail, are wrong or are never tried, and what their calls must leave behind.
#include "function_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

const Candidate* find(const TuneResult& result, const Values& config) {
  for (const Candidate& c : result.candidates)
    if (c.config == config) return &c;
  return nullptr;
}

}  // namespace

TEST_CASE("knobs with which a function throws are failed candidates, not the end",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{8, Method::tree}] = 1e-5;  // would win
  caller.seconds[{8, Method::ring}] = 1e-5;
  caller.seconds[{4, Method::tree}] = 2e-4;
  caller.work = [](const SumKnobs& k, std::vector<float>&) {
    if (k.blocks == 8 && k.method == Method::tree) throw std::runtime_error("no tree of eight");
    if (k.blocks == 8) throw 8;
  };
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  const TuneResult result = f.tune({}, x, 5);
  CHECK(f.knobs({5}) == SumKnobs{4, Method::tree});
  const Candidate* failed = find(result, {8, 1});
  REQUIRE(failed);
  CHECK(failed->status == CandidateStatus::launch_failed);
  CHECK(failed->reason == "no tree of eight");
  REQUIRE(find(result, {8, 0}));
  CHECK(find(result, {8, 0})->status == CandidateStatus::launch_failed);
}

TEST_CASE("knobs that begin to fail while they are timed are failed candidates",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{8, Method::tree}] = 1e-5;
  caller.work = [&](const SumKnobs& k, std::vector<float>&) {
    if (k == SumKnobs{8, Method::tree} && caller.device->timing)
      throw std::runtime_error("not twice");
  };
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  const TuneResult result = f.tune({}, x, 5);
  REQUIRE(find(result, {8, 1}));
  CHECK(find(result, {8, 1})->status == CandidateStatus::launch_failed);
  CHECK(find(result, {8, 1})->reason == "not twice");
  CHECK(result.winner().config != Values{8, 1});
}

TEST_CASE("what the stream reports later fails the candidate as well", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.work = [&](const SumKnobs& k, std::vector<float>&) {
    if (k.blocks == 4) caller.device->sync_error = "an access out of bounds";
  };
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  const TuneResult result = f.tune({}, x, 5);
  REQUIRE(find(result, {4, 0}));
  CHECK(find(result, {4, 0})->reason == "an access out of bounds");
}

TEST_CASE("a lost device ends the tuning and is told", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.work = [&](const SumKnobs& k, std::vector<float>&) {
    if (k.blocks != 4) return;
    caller.device->is_lost = true;
    throw std::runtime_error("illegal address");
  };
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  CHECK_THROWS_AS(f({}, x, 5), runtime::DeviceLost);
}

TEST_CASE("when all knobs fail, the reasons are told and the function is not called",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.work = [](const SumKnobs&, std::vector<float>&) { throw std::runtime_error("no"); };
  const auto f = caller.tuned(caller.sum());
  std::vector<float> x(1, 0.0f);
  try {
    f({}, x, 5);
    FAIL("it should have thrown");
  } catch (const TuningFailedError& error) {
    CHECK(error.reasons().size() == 8);
    CHECK(std::string(error.what()).find("function sum") == 0);
    CHECK(std::string(error.what()).find("no") != std::string::npos);
  }
  CHECK(caller.total() == 8);
  CHECK(directory.entries(".json").empty());
}

TEST_CASE("wrong knobs are disqualified, however fast", "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.seconds[{8, Method::tree}] = 1e-6;
  caller.seconds[{8, Method::ring}] = 1e-6;
  caller.seconds[{4, Method::tree}] = 2e-4;
  caller.work = [](const SumKnobs& k, std::vector<float>& x) {
    if (k.blocks == 8) x[0] -= 1;
  };
  Sum sum = caller.sum();
  sum.snapshot = [](Stream, std::vector<float>& x, int) {
    return [&x, copy = x](Stream) { x = copy; };
  };
  sum.verify = [](std::vector<float>& x, int n) {
    if (x[0] == static_cast<float>(n)) return true;
    if (n == 5) throw std::runtime_error("x[0] is " + std::to_string(x[0]));
    return false;
  };
  const auto f = caller.tuned(sum);
  for (const int n : {5, 6}) {
    std::vector<float> x(1, 0.0f);
    const TuneResult result = f.tune({}, x, n);
    CHECK(f.knobs({n}) == SumKnobs{4, Method::tree});
    REQUIRE(find(result, {8, 1}));
    CHECK(find(result, {8, 1})->status == CandidateStatus::wrong_result);
    CHECK(find(result, {8, 1})->reason.find(n == 5 ? "x[0] is 4" : "`verify`") !=
          std::string::npos);
  }
}

TEST_CASE("what a call changes is put back: before each call of a tuning and after it",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  bool fresh = true;
  caller.work = [&](const SumKnobs&, std::vector<float>& x) { fresh = fresh && x[0] == 100; };
  int snapshots = 0;
  bool outside = true;
  Sum sum = caller.sum();
  sum.snapshot = [&](Stream, std::vector<float>& x, int) {
    ++snapshots;
    return [&, copy = x](Stream) {
      x = copy;
      outside = outside && !caller.device->timing;
    };
  };
  const auto f = caller.tuned(sum);
  std::vector<float> x(2, 100.0f);
  f({}, x, 5);
  CHECK(caller.total() > 20);
  CHECK(fresh);
  CHECK(outside);
  CHECK(snapshots == 1);
  CHECK(x == std::vector<float>(2, 105.0f));  // as if it had been called once
  f({}, x, 5);
  CHECK(snapshots == 1);  // nothing is kept for a plain call
  CHECK(x == std::vector<float>(2, 110.0f));

  std::vector<float> y(1, 100.0f);
  f.tune({}, y, 7);
  CHECK(y[0] == 100);

  caller.work = [](const SumKnobs&, std::vector<float>&) { throw std::runtime_error("no"); };
  CHECK_THROWS_AS(f.tune({}, y, 8), TuningFailedError);
  CHECK(y[0] == 100);
}

TEST_CASE("a snapshot that cannot be taken fails the tuning, not the process",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  Sum sum = caller.sum();
  sum.snapshot = [](Stream, std::vector<float>&, int) -> std::function<void(Stream)> { return {}; };
  std::vector<float> x(1, 0.0f);
  CHECK_THROWS_WITH(caller.tuned(sum)({}, x, 5), Catch::Contains("`snapshot`"));
  CHECK(caller.total() == 0);
}

TEST_CASE("pruned knobs and those outside the constraints are never called",
          "[runtime][function]") {
  Directory directory;
  Caller caller(directory.path());
  caller.device->info().limits.multiprocessors = 4;
  caller.device->info().limits.l2_bytes = 1 << 16;
  bool limits_are_real = true;
  Sum sum = caller.sum();
  sum.space = sum.space.where("a tree has at least two blocks",
                              [](const SumKnobs& k, const SumProblem&, const DeviceLimits&) {
                                return k.method == Method::ring || k.blocks >= 2;
                              });
  sum.prune = [&](const SumKnobs& k, const SumProblem& p, const DeviceLimits& limits) {
    limits_are_real = limits_are_real && limits.l2_bytes == 1 << 16;
    return k.blocks <= limits.multiprocessors && k.blocks <= p.n;
  };
  const auto f = caller.tuned(sum);
  std::vector<float> x(1, 0.0f);
  const TuneResult result = f.tune({}, x, 2);
  CHECK(limits_are_real);
  CHECK(result.space.allowed == 3);
  CHECK(caller.calls.count({1, Method::ring}) == 1);
  CHECK(caller.calls.count({2, Method::tree}) == 1);
  CHECK(caller.calls.count({1, Method::tree}) == 0);
  CHECK(caller.calls.count({4, Method::ring}) == 0);
  CHECK(caller.calls.count({8, Method::ring}) == 0);
}
