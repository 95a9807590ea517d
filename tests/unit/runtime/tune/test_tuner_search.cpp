// Budgets, continued searches, and what a caller may do wrong.
#include <cmath>
#include <limits>

#include "tuner_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("a budget of evaluations", "[runtime][tuner]") {
  Bench bench;
  bench.seconds(8, 0.5 * kMs);
  TuneOptions one;
  one.max_evaluations = 1;
  const TuneResult first = tune(bench, doubling(), one);
  CHECK(first.winner_index == 0);
  CHECK(first.candidates.size() == 1);
  CHECK_FALSE(first.complete);
  CHECK(bench.compiler->compiles == 1);

  TuneOptions three;
  three.max_evaluations = 3;
  const TuneResult second = tune(bench, doubling(), three, &first);
  CHECK(second.count(CandidateStatus::measured) == 3);
  CHECK_FALSE(second.complete);

  const TuneResult third = tune(bench, doubling(), {}, &second);
  CHECK(third.complete);
  CHECK(third.winner().config == Values{8, 0});
  CHECK(third.candidates.size() == 4);
  CHECK(bench.compiler->compiles == 4);  // none twice

  SECTION("just enough is complete") {
    TuneOptions four;
    four.max_evaluations = 4;
    CHECK(tune(bench, doubling(), four).complete);
  }
  SECTION("rejected candidates cost nothing") {
    KernelDefinition kernel = doubling({1, 2, 4, 8, 16, 32}, 32);
    kernel.space.where("at least 16", [](auto c, auto, const auto&) { return c[0] >= 16; });
    TuneOptions two;
    two.max_evaluations = 2;
    const TuneResult r = tune(bench, kernel, two);
    CHECK(r.count(CandidateStatus::measured) == 2);
    CHECK(r.candidates.size() == 2);
    CHECK(r.complete);
  }
  SECTION("what is known is not lost by a small budget") {
    const TuneResult r = tune(bench, doubling({16, 32, 64, 1, 2, 4, 8}), three, &third);
    CHECK(find(r, {8, 0}).status == CandidateStatus::measured);
    CHECK(find(r, {1, 0}).status == CandidateStatus::measured);
    CHECK(r.winner().config == Values{8, 0});
    CHECK_FALSE(r.complete);
  }
}

TEST_CASE("a budget of seconds", "[runtime][tuner]") {
  Bench bench;
  std::vector<std::int64_t> many(100);
  for (int i = 0; i < 100; ++i) many[static_cast<std::size_t>(i)] = i + 1;
  TuneOptions hurry;
  hurry.max_seconds = 1e-9;
  const TuneResult r = tune(bench, doubling(many), hurry);
  CHECK(r.default_candidate().status == CandidateStatus::measured);
  CHECK_FALSE(r.complete);
  CHECK(r.candidates.size() < 20);
  const int before = bench.compiler->compiles;
  TuneOptions all;
  all.strategy = "exhaustive";
  const TuneResult rest = tune(bench, doubling(many), all, &r);
  CHECK(rest.complete);
  CHECK(rest.count(CandidateStatus::measured) == 100);
  CHECK(bench.compiler->compiles == 100);
  CHECK(before < 20);

  for (double odd :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    hurry.max_seconds = odd;
    CHECK_THROWS_AS(tune(bench, doubling(), hurry), UserError);
  }
}

TEST_CASE("a new value costs only the new candidates", "[runtime][tuner]") {
  Bench bench;
  const TuneResult before = tune(bench, doubling());
  Bench second;
  second.seconds(16, 0.5 * kMs);
  const TuneResult after = tune(second, doubling({1, 2, 4, 8, 16}), {}, &before);
  CHECK(after.winner().config == Values{16, 0});
  CHECK(after.count(CandidateStatus::measured) == 5);
  CHECK(second.compiler->compiles == 2);  // the default, which runs beside, and the new one
}

TEST_CASE("what is remembered is held against today's constraints", "[runtime][tuner]") {
  Bench bench;
  bench.seconds(8, 0.5 * kMs);
  const TuneResult before = tune(bench, doubling());
  REQUIRE(before.winner().config == Values{8, 0});
  KernelDefinition stricter = doubling();
  stricter.space.where("not 8", [](auto c, auto, const DeviceLimits&) { return c[0] != 8; });
  const TuneResult strict = tune(bench, stricter, {}, &before);
  CHECK(strict.winner().config != Values{8, 0});
  CHECK(strict.candidates.size() == 3);
  const TuneResult loose = tune(bench, doubling(), {}, &strict);
  CHECK(loose.winner().config == Values{8, 0});
  CHECK(loose.count(CandidateStatus::measured) == 4);
}

TEST_CASE("batches: anchors are timed beside each", "[runtime][tuner]") {
  Bench bench;
  std::vector<std::int64_t> many(150);
  for (int i = 0; i < 150; ++i) many[static_cast<std::size_t>(i)] = i + 1;
  bench.seconds(10, 0.8 * kMs);
  bench.seconds(140, 0.5 * kMs);
  TuneOptions all;
  all.strategy = "exhaustive";
  const TuneResult r = tune(bench, doubling(many, 70), all);
  CHECK(r.complete);
  CHECK(r.count(CandidateStatus::measured) == 150);
  CHECK(r.winner().config == Values{140, 0});
  CHECK(bench.device->live_kernels == 0);

  SECTION("and each batch gives them their full time") {
    Bench slow;
    for (int i = 1; i <= 100; ++i) slow.seconds(i, 0.03);
    const TuneResult s = tune(slow, doubling({many.begin(), many.begin() + 100}, 70));
    CHECK(s.default_candidate().samples.size() >= 7);
  }
}

TEST_CASE("mistakes of the caller", "[runtime][tuner]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  SECTION("an unknown strategy lists the known ones") {
    TuneOptions options;
    options.strategy = "guess";
    const std::string text = message([&] { tune(bench, kernel, options); });
    CHECK(contains(text, "'guess'"));
    CHECK(contains(text, "exhaustive"));
  }
  SECTION("no workload") {
    kernel.workload = nullptr;
    CHECK(contains(message([&] { tune(bench, kernel); }), "`workload` is missing"));
  }
  SECTION("an empty problem") {
    CHECK(contains(message([&] { tune(bench, kernel, {}, nullptr, 0); }), "n=0"));
  }
  SECTION("too few arguments") {
    kernel.workload = [](auto, Workload& w) { w.output<float>(4); };
    CHECK(contains(message([&] { tune(bench, kernel); }),
                   "makes 1 arguments, but the signature has 3"));
  }
  SECTION("a value for an array") {
    kernel.workload = [](auto, Workload& w) { w.output<float>(4).scalar(1.0f).scalar(4); };
    const std::string text = message([&] { tune(bench, kernel); });
    CHECK(contains(text, "argument 1 a value"));
    CHECK(contains(text, "`const float*`"));
  }
  SECTION("another element type") {
    kernel.workload = [](auto, Workload& w) { w.output<double>(4).input<float>(4).scalar(4); };
    CHECK(contains(message([&] { tune(bench, kernel); }), "argument 0 of f64"));
  }
  SECTION("a struct for a number") {
    struct Pair {
      int a, b;
    };
    kernel.workload = [](auto, Workload& w) {
      w.output<float>(4).input<float>(4).scalar(Pair{1, 2});
    };
    CHECK(contains(message([&] { tune(bench, kernel); }), "argument 2 of bytes"));
  }
  SECTION("an output that is const") {
    kernel.workload = [](auto, Workload& w) { w.output<float>(4).output<float>(4).scalar(4); };
    CHECK(contains(message([&] { tune(bench, kernel); }), "argument 1"));
  }
  SECTION("no output") {
    kernel.workload = [](auto, Workload& w) { w.input<float>(4).input<float>(4).scalar(4); };
    CHECK(contains(message([&] { tune(bench, kernel); }), "no output"));
  }
  CHECK(bench.compiler->compiles == 0);
}

TEST_CASE("data that does not fit the device is the environment's failure", "[runtime][tuner]") {
  Bench bench;
  bench.device->memory = 100;
  CHECK_THROWS_AS(tune(bench, doubling()), EnvironmentError);
  CHECK(bench.device->live_allocations == 0);
}

TEST_CASE("progress is told in order, and may give up", "[runtime][tuner]") {
  Bench bench;
  TuneOptions options;
  std::vector<TuneProgress> seen;
  options.progress = [&](const TuneProgress& p) { seen.push_back(p); };
  tune(bench, doubling(), options);
  REQUIRE_FALSE(seen.empty());
  CHECK(seen.front().phase == TuneProgress::Phase::compile);
  CHECK(seen.back().phase == TuneProgress::Phase::finals);
  CHECK(seen.back().evaluated == 4);
  CHECK(seen.back().best_seconds == Approx(kMs));
  for (const TuneProgress& p : seen) CHECK(p.done <= p.total);

  options.progress = [](const TuneProgress&) { throw std::runtime_error("enough"); };
  CHECK_THROWS_WITH(tune(bench, doubling(), options), "enough");
  CHECK(bench.device->live_kernels == 0);
  CHECK(bench.device->live_allocations == 0);
}
