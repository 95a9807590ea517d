// Several draws of one problem: right on each, timed over all.
#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/tune/record.hpp"
#include "unit/runtime/tune/tuner_fixture.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

constexpr int kFullDraw = 100, kHalfDraw = 50;

int drawn_length(void** args) { return *static_cast<int*>(args[2]); }

/// doubling() over all n elements in its first draw, over half of them in the others.
KernelDefinition drawn(std::vector<double> weights) {
  KernelDefinition k = doubling();
  k.draws = std::move(weights);
  k.workload = [](std::span<const std::int64_t> p, Workload& w) {
    const auto n = static_cast<std::size_t>(p[0]) / (w.draw() == 0 ? 1 : 2);
    w.output<float>(n).input<float>(n).scalar<int>(static_cast<int>(n));
  };
  return k;
}

/// a = 1 takes 1 ms on the first draw and 9 ms on the others, all else takes 4 ms.
void uneven(Bench& bench, double unit = kMs) {
  for (const int a : {1, 2, 4, 8}) bench.seconds(a, 0);
  FakeDevice& device = *bench.device;
  device.on_launch = [&device, unit](const std::string& entry, void** args) {
    device.pass(entry != "k<1, 0>" ? 4 * unit : drawn_length(args) == kFullDraw ? unit : 9 * unit);
  };
}

}  // namespace

TEST_CASE("the time of a candidate is the weighted mean over all draws", "[runtime][draws]") {
  Bench bench;
  uneven(bench);
  const TuneResult even = tune(bench, drawn({1, 1}));
  CHECK(find(even, {1, 0}).seconds == Approx(5 * kMs));
  CHECK(find(even, {4, 0}).seconds == Approx(4 * kMs));
  CHECK(even.winner().config != Values{1, 0});
  const TuneResult mostly_full = tune(bench, drawn({3, 1}));
  CHECK(find(mostly_full, {1, 0}).seconds == Approx(3 * kMs));
  CHECK(mostly_full.winner().config == Values{1, 0});
  const TuneResult three = tune(bench, drawn({2, 1, 1}));
  CHECK(find(three, {1, 0}).seconds == Approx(5 * kMs));
  // A weight says how much a draw counts among the others.
  CHECK(find(tune(bench, drawn({0.3, 0.1})), {1, 0}).seconds == Approx(3 * kMs));
  CHECK(find(tune(bench, drawn({})), {1, 0}).seconds == Approx(kMs));
  CHECK(find(tune(bench, drawn({7})), {1, 0}).seconds == Approx(kMs));
}

TEST_CASE("draws are replayed, too", "[runtime][draws]") {
  Bench bench;
  bench.device->records = true;
  bench.device->info().limits.l2_bytes = 4096;
  uneven(bench, 1e-6);
  const TuneResult r = tune(bench, drawn({3, 1}));
  CHECK(bench.device->captures > 0);
  CHECK(find(r, {1, 0}).seconds == Approx(3e-6));
}

TEST_CASE("a candidate must be right on every draw", "[runtime][draws]") {
  for (const int wrong_for : {kFullDraw, kHalfDraw}) {
    Bench bench;
    bench.seconds(8, 1e-6);
    bench.of(8).run = [=](void** args) {
      compute_doubling(args);
      if (drawn_length(args) == wrong_for) (*static_cast<float**>(args[0]))[3] += 1;
    };
    const TuneResult r = tune(bench, drawn({1, 1}));
    const Candidate& c = find(r, {8, 0});
    CHECK(c.status == CandidateStatus::wrong_result);
    CHECK(contains(c.reason,
                   wrong_for == kFullDraw ? "draw 0 of 2: element 3" : "draw 1 of 2: element 3"));
    CHECK(r.count(CandidateStatus::measured) == 3);
    // Without a reference the default's outputs count, on every draw.
    KernelDefinition alone = drawn({1, 1});
    alone.reference = nullptr;
    CHECK(find(tune(bench, alone), {8, 0}).status == CandidateStatus::wrong_result);
  }
}

TEST_CASE("damage on one draw is found", "[runtime][draws]") {
  Bench bench;
  bench.seconds(8, 1e-6);
  bench.of(8).run = [&](void** args) {
    compute_doubling(args);
    if (drawn_length(args) == kHalfDraw && bench.device->timing)
      (*static_cast<float**>(args[1]))[0] = 7;
  };
  const TuneResult r = tune(bench, drawn({1, 1}));
  CHECK(find(r, {8, 0}).status == CandidateStatus::wrong_result);
  CHECK(contains(find(r, {8, 0}).reason, "draw 1 of 2: wrote element 0 of argument 1"));
  CHECK(r.count(CandidateStatus::measured) == 3);
}

TEST_CASE("every draw has its variables", "[runtime][draws]") {
  Bench bench;
  KernelDefinition kernel = drawn({1, 1});
  kernel.workload = [sized = kernel.workload](std::span<const std::int64_t> p, Workload& w) {
    sized(p, w);
    w.symbol("length", static_cast<int>(w.arguments()[0].count));
  };
  std::set<std::pair<int, int>> seen;
  for (const int a : {1, 2, 4, 8}) {
    bench.of(a).variables = {{"length", std::vector<std::byte>(sizeof(int))}};
    bench.of(a).run_with = [&](void** args, auto& variables) {
      int length = 0;
      std::memcpy(&length, variables.at("length").data(), sizeof(int));
      seen.emplace(drawn_length(args), length);
      compute_doubling(args);
    };
  }
  CHECK(tune(bench, kernel).count(CandidateStatus::measured) == 4);
  CHECK(seen == std::set<std::pair<int, int>>{{kFullDraw, kFullDraw}, {kHalfDraw, kHalfDraw}});
}

TEST_CASE("draws are in the key and in the record", "[runtime][draws]") {
  Bench bench;
  const Values problem{100};
  const auto key = [&](std::vector<double> weights) {
    return runtime::record_key(drawn(std::move(weights)), problem, bench.device->info(), {});
  };
  CHECK(key({1, 1}) == key({1, 1}));
  CHECK_FALSE(key({1, 1}) == key({}));
  CHECK_FALSE(key({1, 1}) == key({1}));
  CHECK_FALSE(key({1, 1}) == key({1, 1, 1}));
  CHECK_FALSE(key({1, 1}) == key({1, 2}));
  CHECK(key({}) == runtime::record_key(doubling(), problem, bench.device->info(), {}));
  CHECK(key({3, 1}).value("draws") == "2 draws, of weights 3 1");
  const auto record = [&](const KernelDefinition& kernel) {
    return runtime::record_json(tune(bench, kernel), kernel, {}, bench.device->info());
  };
  CHECK(record(drawn({3, 1})).at("draws") == nlohmann::json{3.0, 1.0});
  CHECK_FALSE(record(drawn({})).contains("draws"));
}

TEST_CASE("weights that make no sense", "[runtime][draws]") {
  for (const double weight : {0.0, -1.0, HUGE_VAL, std::nan("")})
    CHECK(contains(message([&] { drawn({1, weight}).validate(); }), "`draws` has the weight"));
  CHECK_NOTHROW(drawn({1e-3, 5}).validate());
}

TEST_CASE("draws of a typed kernel", "[runtime][draws]") {
  Typed typed = typed_doubling();
  typed.draws = {1, 3};
  typed.workload = [](const DoublingProblem& p, Workload& w) {
    const auto n = std::size_t(p.n) / (1 + w.draw());
    w.output<float>(n).input<float>(n).scalar<int>(int(n));
  };
  Bench bench;
  for (const int a : {1, 2, 4, 8}) (*bench.script)[typed_entry(a)].seconds = 0;
  bench.device->on_launch = [&](const std::string&, void** args) {
    bench.device->pass(drawn_length(args) == kFullDraw ? kMs : 5 * kMs);
  };
  CHECK(tune(bench, typed.definition()).winner().seconds == Approx(4 * kMs));
}

TEST_CASE("data that are drawn ahead are not waited for where a worker is to have its own",
          "[runtime][draws]") {
  Bench bench;
  bench.device->info().id = "cuda:0";
  const KernelDefinition kernel = doubling();
  runtime::KernelMaker maker(kernel, Values{64}, bench.device, bench.builder, 1, {},
                             {.executable = "/nowhere/kiln-worker"});
  std::promise<std::vector<runtime::KernelData>> drawn;
  maker.use_drawn(drawn.get_future());
  REQUIRE(maker.isolate());
  const auto made = std::async(std::launch::async, [&] { maker.bench(); });
  CHECK(made.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  drawn.set_value({});  // or it would wait for ever
}
