#include <set>
#include <stop_token>

#include <nlohmann/json.hpp>

#include "cache/store.hpp"
#include "kiln/occupancy.hpp"
#include "kiln_test.hpp"
#include "runtime/ship/precompile.hpp"
#include "runtime/tune/record.hpp"
#include "temporary_directory.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using kiln::test::doubling;
using kiln::test::FakeCompiler;
using kiln::test::Script;

namespace {

const Target kHere{Target::Kind::host, "generic"};
const Target kThere{Target::Kind::cuda, "sm_90a"};

/// A folder with a store in it, a compiler for any target, and a log.
struct Site {
  const test::TemporaryDirectory directory;
  const std::filesystem::path folder = directory.path();
  std::shared_ptr<Script> script = std::make_shared<Script>();
  std::shared_ptr<FakeCompiler> compiler = std::make_shared<FakeCompiler>(script);
  PrecompileOptions options;
  std::string log;

  Site() {
    options.store.directory = folder / "store";
    options.threads = 2;
    options.log = [this](LogLevel level, std::string_view text) {
      if (level >= LogLevel::warning) log += std::string(text) + "\n";
    };
  }

  PrecompileReport run(const std::vector<PrecompileJob>& jobs, const char* name = "out.kiln") {
    return runtime::precompile(jobs, folder / name, options,
                               [this](Target::Kind) { return compiler; });
  }
  bool wrote(const char* name = "out.kiln") const { return std::filesystem::exists(folder / name); }
  std::string bytes(const char* name) const { return test::read_text(folder / name); }
  std::multiset<std::string> configs(const char* name = "out.kiln") const {
    std::multiset<std::string> found;
    for (const StoreEntry& e : bundle_entries(folder / name))
      for (const KeyField& f : e.key.fields)
        if (e.kind == EntryKind::binary && f.name == "config") found.insert(f.value);
    return found;
  }
};

/// A record as a tuner on a device of `target` would leave it.
void remember(const std::filesystem::path& directory, const KernelDefinition& kernel,
              const Values& problem, const Values& winner, const Target& target,
              const std::string& device = "A", bool complete = false) {
  DeviceInfo info;
  info.target = target;
  info.fingerprint = {{"model", device}};
  codegen::IncludeCache cache;
  TuneResult result;
  result.kernel = kernel.name;
  result.types = kernel.types;
  result.problem_fields = kernel.problem_fields;
  result.problem = problem;
  for (const Parameter& p : kernel.space.parameters()) result.parameters.push_back(p.name);
  Candidate base, best;
  base.config = kernel.space.default_config(target);
  best.config = winner;
  base.status = best.status = CandidateStatus::measured;
  base.seconds = best.seconds = 1;
  base.samples = best.samples = {1.0};
  result.candidates = {base, best};
  result.winner_index = 1;
  result.complete = complete;
  StoreOptions options;
  options.directory = directory;
  cache::Store(options).put_record(
      runtime::record_key(kernel, problem, info, {.kernel = codegen::source_digest(kernel, cache)}),
      runtime::record_json(result, kernel, {}, info));
}

}  // namespace

TEST_CASE("all that the space allows, each instance once", "[runtime][precompile]") {
  Site site;
  KernelDefinition k = doubling({1, 2, 4, 8}, 2, {0, 1});
  k.space.where("b is for small problems", [](auto config, auto problem, const DeviceLimits&) {
    return config[1] == 0 || problem[0] < 100;
  });
  k.bucket = [](auto problem) { return Values{(problem[0] + 9) / 10 * 10}; };
  // 95 and 98 are one bucket; 1000 allows half of the configs, all of which 98 has, too.
  const auto report =
      site.run({{k, {95}, {kHere}}, {k, {98}, {kHere, kThere, kHere}}, {k, {1000}, {kHere}}});
  // 98 is tuned as 100, which is not small.
  CHECK(report.instances == 8);
  CHECK(report.compiled == 8);
  CHECK(report.bundle.binaries == 8);
  CHECK(site.configs() == std::multiset<std::string>{"a=1,b=0", "a=2,b=0", "a=4,b=0", "a=8,b=0",
                                                     "a=1,b=0", "a=2,b=0", "a=4,b=0", "a=8,b=0"});
  CHECK(report.threads == 2);
  CHECK(report.failures.empty());
  CHECK_FALSE(report.stopped);
  CHECK(report.seconds > 0);
  CHECK(report.busy_seconds > 0);

  SECTION("from the store nothing is compiled, and the bytes are the same") {
    const auto again = site.run({{k, {1000}, {kThere, kHere}}}, "again.kiln");
    CHECK(again.compiled == 0);
    CHECK(again.instances == 8);
    CHECK(site.bytes("again.kiln") == site.bytes("out.kiln"));
  }
  SECTION("two definitions with other source are not one kernel") {
    KernelDefinition edited = k;
    edited.source.text += " ";
    CHECK(site.run({{k, {1000}, {kHere}}, {edited, {1000}, {kHere}}}).instances == 8);
  }
}

TEST_CASE("what the target could never launch is left out", "[runtime][precompile]") {
  Site site;
  // A block of 2048 threads fits no GPU; a constraint sees the target's own limits.
  KernelDefinition k = doubling({1, 64, 2048}, 64);
  k.space.where("hopper has 227 KiB", [](auto, auto, const DeviceLimits& d) {
    return d.compute_capability != 90 || d.shared_per_block_optin == 227 * 1024;
  });
  CHECK(site.run({{k, {100}, {kThere}}}).instances == 2);
  CHECK(site.configs() == std::multiset<std::string>{"a=1,b=0", "a=64,b=0"});
  KernelDefinition choosy = doubling({1, 2, 4}, 2);
  choosy.space.where("4 is for Ampere, 1 for the host", [](auto c, auto, const DeviceLimits& d) {
    return c[0] == 2 || (c[0] == 4 ? d.compute_capability == 80 : d.compute_capability == 0);
  });
  const Target ampere = Target::parse("sm_80");
  CHECK(site.run({{choosy, {100}, {kThere, ampere, kHere}}}).instances == 5);
  CHECK(site.configs() ==
        std::multiset<std::string>{"a=1,b=0", "a=2,b=0", "a=2,b=0", "a=2,b=0", "a=4,b=0"});
  CHECK_THROWS_WITH(
      site.run({{doubling({2048}, 2048), {100}, {kThere}}}, "none.kiln"),
      Catch::Contains("2048x1x1") && Catch::Contains("sm_90a") && Catch::Contains("n=100"));
  CHECK_FALSE(site.wrote("none.kiln"));
}

TEST_CASE("the default is always there, other configs as they are named", "[runtime][precompile]") {
  Site site;
  KernelDefinition k = doubling();
  k.space.default_on(Target::Kind::host, {4, 0});
  k.space.where("never", [](auto, auto, const DeviceLimits&) { return false; });
  site.run({{k, {100}, {kHere}}});
  CHECK(site.configs() == std::multiset<std::string>{"a=4,b=0"});
  site.run({{k, {100}, {kThere}}});
  CHECK(site.configs() == std::multiset<std::string>{"a=2,b=0"});
  site.run({{doubling(), {100}, {kHere}, {{8, 0}}}});
  CHECK(site.configs() == std::multiset<std::string>{"a=2,b=0", "a=8,b=0"});
}

TEST_CASE("a config that does not compile is reported and left out", "[runtime][precompile]") {
  Site site;
  (*site.script)["k<4, 0>"].compile_log = "error: four";
  const auto report = site.run({{doubling(), {100}, {kHere}}});
  REQUIRE(report.failures.size() == 1);
  CHECK(report.failures[0].log == "error: four");
  CHECK(report.failures[0].kernel == "doubling{a=4,b=0}");
  CHECK(report.instances == 4);
  CHECK(report.bundle.binaries == 3);
  for (const char* a : {"1", "2", "8"})
    (*site.script)["k<" + std::string(a) + ", 0>"].compile_log = "error: too";
  StoreOptions nowhere;
  nowhere.disk = false;
  site.options.store = nowhere;
  const auto none = site.run({{doubling(), {100}, {kHere}}}, "none.kiln");
  CHECK(none.instances == 4);
  REQUIRE(none.failures.size() == 4);
  CHECK(none.failures[0].log == "error: too");
  CHECK_FALSE(none.stopped);
  CHECK(none.bundle.binaries == 0);
  CHECK_FALSE(site.wrote("none.kiln"));
}

TEST_CASE("what was edited while it was compiled is not put into a bundle",
          "[runtime][precompile]") {
  Site site;
  KernelDefinition k = doubling();
  const std::string original = std::exchange(k.source.text, {});
  k.source.file = site.folder / "doubling.cuh";
  test::write_text(k.source.file, original);
  site.options.threads = 1;
  int edits = 0;
  site.compiler->on_compile = [&](const codegen::Source&) {
    test::write_text(k.source.file, original + "// " + std::to_string(++edits));
  };
  const auto report = site.run({{k, {100}, {kHere}}});
  REQUIRE(report.failures.size() == 4);
  for (const auto& failure : report.failures)
    CHECK_THAT(failure.log, Catch::Contains("was edited while it was compiled"));
  CHECK(report.bundle.binaries == 0);
}

TEST_CASE("what may depend on unknown files is not put into a bundle", "[runtime][precompile]") {
  Site site;
  KernelDefinition k = doubling();
  k.source.text = "#if __has_include(NAME)\n#endif\n" + k.source.text;
  const auto report = site.run({{k, {100}, {kHere}}, {doubling(), {100}, {kHere}, {{1, 0}}}});
  CHECK(report.failures.size() == 4);
  CHECK(report.bundle.binaries == 2);
  REQUIRE(!report.failures.empty());
  CHECK_THAT(report.failures[0].log, Catch::Contains("only a compiler can tell"));
}

TEST_CASE("a stop leaves no bundle, but what was compiled", "[runtime][precompile]") {
  Site site;
  std::stop_source stop;
  site.options.stop = stop.get_token();
  site.options.threads = 1;
  site.compiler->on_compile = [&](const codegen::Source& source) {
    if (source.entry == "k<1, 0>") stop.request_stop();
  };
  const auto report = site.run({{doubling({4, 1, 2, 8}, 4), {100}, {kHere}}});
  CHECK(report.stopped);
  CHECK(report.compiled == 2);
  CHECK(report.bundle.binaries == 0);
  CHECK_FALSE(site.wrote());
  site.options.stop = {};
  CHECK(site.run({{doubling({4, 1, 2, 8}, 4), {100}, {kHere}}}).compiled == 2);
}

TEST_CASE("mistakes are told before anything is compiled", "[runtime][precompile]") {
  Site site;
  const std::vector<PrecompileJob> good{{doubling(), {100}, {kHere}}};
  CHECK_THROWS_AS(site.run({}), UserError);
  CHECK_THROWS_AS(site.run({{doubling(), {100}, {}}}), UserError);
  CHECK_THROWS_AS(site.run({{doubling(), {100, 1}, {kHere}}}), UserError);
  CHECK_THROWS_AS(site.run({{doubling(), {100}, {kHere}, {{1}}}}), UserError);
  CHECK_THROWS_AS(site.run(good, "no/such/folder.kiln"), EnvironmentError);
  CHECK_THROWS_AS(site.run(good, "."), UserError);
  site.options.private_key = site.folder / "key.pem";
  CHECK_THROWS_WITH(site.run(good), Catch::Contains("key.pem"));
  site.options.private_key.clear();
  site.options.records = {site.folder / "no_records"};
  CHECK_THROWS_WITH(site.run(good), Catch::Contains("no_records"));
  site.options.records.clear();
  CHECK(site.compiler->compiles == 0);
  CHECK_FALSE(site.wrote());

  const auto nobody = [](Target::Kind) -> std::shared_ptr<codegen::Compiler> {
    throw EnvironmentError("no compiler");
  };
  CHECK_THROWS_WITH(runtime::precompile(good, site.folder / "x.kiln", site.options, nobody),
                    "no compiler");
  const auto only_here = [&](Target::Kind kind) -> std::shared_ptr<codegen::Compiler> {
    if (kind == Target::Kind::cuda) throw EnvironmentError("no compiler for it");
    return site.compiler;
  };
  CHECK_THROWS_WITH(runtime::precompile({{doubling(), {100}, {kHere, kThere}}},
                                        site.folder / "x.kiln", site.options, only_here),
                    "no compiler for it");
  CHECK(site.compiler->compiles == 0);
  site.compiler->on_compile = [](const codegen::Source&) { throw EnvironmentError("it died"); };
  CHECK_THROWS_WITH(site.run(good), "it died");
  CHECK_FALSE(site.wrote());
}

TEST_CASE("of two records of one key, the one whose search has ended names the winner",
          "[runtime][precompile]") {
  Site site;
  const auto cut = site.folder / "cut", ended = site.folder / "ended";
  const KernelDefinition k = doubling();
  remember(cut, k, {100}, {8, 0}, kHere);
  remember(ended, k, {100}, {4, 0}, kHere, "A", true);
  const bool first = GENERATE(false, true);
  site.options.records = first ? std::vector{ended, cut} : std::vector{cut, ended};
  CHECK(site.run({{k, {100}, {kHere}}}).records == 1);
  CHECK(site.configs() == std::multiset<std::string>{"a=2,b=0", "a=4,b=0"});
}

TEST_CASE("records name the winners, and go along", "[runtime][precompile]") {
  Site site;
  const auto tuned = site.folder / "tuned";
  const KernelDefinition k = doubling();
  remember(tuned, k, {100}, {8, 0}, kHere);
  remember(tuned, k, {100}, {1, 0}, kHere, "B");  // another device of that target
  remember(tuned, k, {100}, {4, 0}, kThere);
  remember(tuned, k, {200}, {4, 0}, kHere);
  site.options.records = {tuned, tuned};
  const auto report = site.run({{k, {100}, {kHere}}});
  CHECK(site.configs() == std::multiset<std::string>{"a=1,b=0", "a=2,b=0", "a=8,b=0"});
  CHECK(report.records == 2);
  CHECK(report.bundle.records == 2);
  CHECK(site.log == "");

  SECTION("of a bundle as well") {
    site.options.records = {site.folder / "out.kiln"};
    CHECK(site.run({{k, {100}, {kHere}}}, "again.kiln").records == 2);
    CHECK(site.bytes("again.kiln") == site.bytes("out.kiln"));
  }
  SECTION("a job without one keeps all its configs") {
    const auto other = site.run({{k, {300}, {kHere}}});
    CHECK(other.instances == 4);
    CHECK(other.records == 0);
  }
  SECTION("of another source they say nothing") {
    KernelDefinition edited = k;
    edited.source.text += " ";
    CHECK(site.run({{edited, {100}, {kHere}}}).records == 0);
    CHECK(site.configs().size() == 4);
    CHECK_THAT(site.log, Catch::Contains("other source"));
  }
  SECTION("a record whose winner does not compile stays behind") {
    (*site.script)["k<8, 0>"].compile_log = "error: eight";
    StoreOptions nowhere;
    nowhere.disk = false;
    site.options.store = nowhere;
    const auto without = site.run({{k, {100}, {kHere}}}, "without.kiln");
    CHECK(without.failures.size() == 1);
    CHECK(without.bundle.binaries == 2);
    CHECK(without.records == 1);
    CHECK(without.bundle.records == 1);
    CHECK_THAT(site.log, Catch::Contains("doubling{a=8,b=0}"));
  }
  SECTION("a winner that left the space is no winner") {
    const auto shrunk = site.run({{doubling({1, 2, 4}, 2), {100}, {kHere}}});
    CHECK(shrunk.records == 1);
    CHECK(site.configs() == std::multiset<std::string>{"a=1,b=0", "a=2,b=0"});
    CHECK_THAT(site.log, Catch::Contains("'a'"));
  }
}

TEST_CASE("a manifest becomes jobs of the registry's kernels", "[runtime][precompile]") {
  Registry registry;
  registry.add({"double_it", "y = 2 x", {"f32", "f64"}, [](std::string_view type) {
                  KernelDefinition k = doubling();
                  k.types = {type == "f32" ? "float" : "double"};
                  return k;
                }});
  const WantedInstance all{"doubling", {"double"}, "sm_90a", {{"n", 7}}, {}};
  const WantedInstance one{"doubling", {"float"}, "x86-64-v3", {{"n", 7}}, {{"a", 4}, {"b", 0}}};
  const auto jobs = jobs_for({{all, one}}, registry);
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0].kernel.types == std::vector<std::string>{"double"});
  CHECK(jobs[0].problem == Values{7});
  CHECK(jobs[0].targets == std::vector{kThere});
  CHECK(jobs[0].configs.empty());
  CHECK(jobs[1].configs == std::vector<Values>{{4, 0}});
  CHECK(jobs_for({}, registry).empty());

  const auto refused = [&](WantedInstance bad, const char* word) {
    CHECK_THROWS_WITH(jobs_for({{all, std::move(bad)}}, registry),
                      Catch::Contains("entry 1") && Catch::Contains(word));
  };
  WantedInstance bad = all;
  bad.kernel = "tripling";
  refused(bad, "doubling<float>");
  bad = all;
  bad.types = {"int"};
  refused(bad, "known");
  bad = all;
  bad.target = "sm_9";
  refused(bad, "sm_9");
  bad = all;
  bad.problem = {{"m", 1}};
  refused(bad, "m");
  bad = one;
  bad.config["a"] = 3;
  refused(bad, "3");
}

TEST_CASE("limits of targets that are not here", "[runtime][precompile]") {
  CHECK(limits_of(kThere).compute_capability == 90);
  CHECK(limits_of(Target::parse("sm_100a")).compute_capability == 100);
  CHECK(limits_of(Target::parse("sm_80")).shared_per_block_optin ==
        limits_of(80).shared_per_block_optin);
  CHECK(limits_of(kHere).compute_capability == 0);
  CHECK(limits_of(kHere).max_threads_per_block > 0);
}
