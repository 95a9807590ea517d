#include <map>
#include <set>

#include "kiln/replay.hpp"
#include "kiln_test.hpp"
#include "t4_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

template <class F>
std::string user_error(F&& f) {
  try {
    f();
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// 400 configs with values that differ, a third of which fail.
std::string wide() {
  std::vector<std::string> entries;
  for (int i = 0; i < 400; ++i) {
    const int a = i % 20, b = i / 20;
    const double ms = 1 + 0.01 * ((a - 13) * (a - 13) + (b - 5) * (b - 5)) + 0.001 * (i % 7);
    entries.push_back(t4_entry("{\"a\":" + std::to_string(a) + ",\"b\":" + std::to_string(b) + "}",
                               std::to_string(ms * 0.8) + "," + std::to_string(ms * 1.2),
                               (a * 7 + b) % 3 ? "correct" : "compile"));
  }
  return t4(entries);
}

}  // namespace

TEST_CASE("replay runs every strategy and judges it by true means", "[runtime][recorded]") {
  const T4Files files;
  const SearchReplay replay(files.read(wide()));
  for (const std::string& name : search_strategies()) {
    INFO(name);
    const ReplayResult r = replay.run({.strategy = name, .budget = 60, .repeats = 8});
    CHECK(r.strategy == name);
    CHECK(r.evaluations == 60);
    CHECK(r.repeats == 8);
    CHECK(r.optimum == replay.space().optimum());
    REQUIRE(r.curve.size() == 60);
    CHECK(r.curve.back().evaluations == 60);
    for (std::size_t i = 1; i < r.curve.size(); ++i) {
      CHECK(r.curve[i].mean >= r.curve[i - 1].mean);
      CHECK(r.curve[i].min <= r.curve[i].mean + 1e-12);
    }
    CHECK(r.mean == r.curve.back().mean);
    CHECK(r.mean > 0);
    CHECK(r.mean <= 1);
    CHECK(r.used <= 60);
  }
}

TEST_CASE("failing configs cost evaluations and count for nothing", "[runtime][recorded]") {
  const T4Files files;
  const SearchReplay replay(
      files.read(t4({t4_entry(R"({"a":1})", "", "runtime"), t4_entry(R"({"a":2})", "", "compile"),
                     t4_entry(R"({"a":3})", "4"), t4_entry(R"({"a":4})", "2")})));
  const ReplayResult r = replay.run({.strategy = "exhaustive", .budget = 10, .repeats = 1});
  // In the order of the space, or with the default first: either way nothing before the first
  // config that works, and the optimum once all four are known.
  CHECK(r.used == 4);
  CHECK(r.at(4).mean == 1);
  CHECK(r.at(10).mean == 1);  // ended early: keeps its best
  CHECK(r.mean == 1);
  CHECK(r.device_seconds == Approx(4 * 0.1 + 4e-3 + 2e-3));
  std::set<double> seen;
  for (const ReplayPoint& p : r.curve) seen.insert(p.mean);
  CHECK(seen.size() >= 2);
  for (double fraction : seen) CHECK((fraction == 0 || fraction == 0.5 || fraction == 1));
}

TEST_CASE("a replay depends on its seed and nothing else", "[runtime][recorded]") {
  const T4Files files;
  const SearchReplay replay(files.read(wide()));
  for (const bool noise : {false, true}) {
    ReplayOptions options{
        .strategy = "random", .budget = 30, .repeats = 6, .seed = 5, .noise = noise};
    const ReplayResult a = replay.run(options);
    options.threads = 1;
    const ReplayResult b = replay.run(options);
    for (std::size_t i = 0; i < a.curve.size(); ++i) CHECK(a.curve[i].mean == b.curve[i].mean);
    options.seed = 6;
    CHECK(replay.run(options).at(3).mean != a.at(3).mean);
  }
}

TEST_CASE("noise is told, the truth is judged", "[runtime][recorded]") {
  const T4Files files;
  // By single repeats the first looks faster half of the time; it never is.
  const SearchReplay replay(
      files.read(t4({t4_entry(R"({"a":1})", "1,9"), t4_entry(R"({"a":2})", "2")})));
  const ReplayOptions noisy{
      .strategy = "exhaustive", .budget = 2, .repeats = 200, .noise = true, .threads = 2};
  const ReplayResult r = replay.run(noisy);
  CHECK(r.min == Approx(0.4));  // picked the first, whose mean is 5 ms
  CHECK(r.mean > 0.55);
  CHECK(r.mean < 0.85);
  ReplayOptions quiet = noisy;
  quiet.noise = false;
  CHECK(replay.run(quiet).min == 1);
}

TEST_CASE("a space of one config is searched", "[runtime][recorded]") {
  const T4Files files;
  const SearchReplay replay(files.read(t4({t4_entry(R"({"a":1,"b":2})", "3")})));
  for (const std::string& name : search_strategies()) {
    INFO(name);
    const ReplayResult r = replay.run({.strategy = name, .budget = 50, .repeats = 2});
    CHECK(r.used == 1);
    CHECK(r.min == 1);
  }
}

TEST_CASE("long curves are thinned but keep their end", "[runtime][recorded]") {
  const T4Files files;
  const SearchReplay replay(files.read(wide()));
  const ReplayResult r = replay.run({.strategy = "exhaustive", .budget = 1000003, .repeats = 1});
  CHECK(r.curve.size() < 2000);
  CHECK(r.curve.back().evaluations == 1000003);
  CHECK(r.at(200).evaluations == 200);
  CHECK(r.mean == 1);
  CHECK(has(user_error([&] { r.at(0); }), "0"));
}

TEST_CASE("mistakes in a replay are said", "[runtime][recorded]") {
  const T4Files files;
  const SearchReplay replay(files.read(bowl()));
  const std::string unknown = user_error([&] { replay.run({.strategy = "guesswork"}); });
  CHECK(has(unknown, "guesswork"));
  for (const std::string& name : search_strategies()) CHECK(has(unknown, name));
  CHECK(has(user_error([&] { replay.run({.budget = 0}); }), "budget"));
  CHECK(has(user_error([&] { replay.run({.repeats = 0}); }), "repeats"));
  CHECK(replay.run({.budget = 5, .repeats = 1}).strategy == default_search_strategy());
}

TEST_CASE("a few configs among very many combinations are found", "[runtime][recorded]") {
  const T4Files files;
  std::vector<std::string> entries;
  std::uint64_t state = 1;
  for (int i = 0; i < 300; ++i) {
    std::string config;
    for (int p = 0; p < 10; ++p) {
      state = state * 6364136223846793005 + 1442695040888963407;
      config += (p ? ",\"p" : "\"p") + std::to_string(p) + "\":" + std::to_string(state >> 60);
    }
    entries.push_back(t4_entry("{" + config + "}", std::to_string(1 + i % 37)));
  }
  const RecordedSpace space = files.read(t4(entries));
  const DynamicSpace dynamic = space.dynamic();
  CHECK(dynamic.combinations() > 1e11);
  const DeviceLimits limits;
  for (std::size_t i = 0; i < space.size(); ++i) {
    Values config = space.config(i);
    CHECK(dynamic.violated(config, {}, limits) == nullptr);
    config[9] = (config[9] + 1) % 16;
    CHECK((dynamic.violated(config, {}, limits) == nullptr) == space.find(config).has_value());
  }
  const SearchReplay replay(space);
  for (const char* name : {"random", "local_search", ""}) {
    const ReplayResult r = replay.run({.strategy = name, .budget = 20, .repeats = 3});
    CHECK(r.used > 15);
    CHECK(r.min > 0);
  }
}
