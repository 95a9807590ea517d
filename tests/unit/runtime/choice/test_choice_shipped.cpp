// Bundles with choices: the binaries of their kernels, and what was measured.
#include <fstream>
#include <string>
#include <vector>

#include "choice_fixture.hpp"
#include "kiln_test.hpp"
#include "runtime/ship/precompile.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

const Target kHere{Target::Kind::host, "generic"};

/// A release job that has the records of `tuned`.
struct Release {
  explicit Release(Chooser& process) : process_(process) {
    options.store.disk = false;
    options.records = {process.options.store.directory};
  }

  PrecompileReport run(const std::vector<PrecompileJob>& jobs, const fs::path& bundle) {
    return runtime::precompile(jobs, bundle, options,
                               [this](Target::Kind) { return process_.compiler; });
  }
  PrecompileOptions options;

 private:
  Chooser& process_;
};

PrecompileJob job_of(const Doubling& choice, int n) {
  PrecompileJob job;
  job.choice = choice.description();
  job.problem = {n};
  job.targets = {kHere};
  return job;
}

}  // namespace

TEST_CASE_METHOD(Twice, "a bundle ships what a choice has measured", "[choice][precompile]") {
  auto kernel = typed_doubling();
  kernel.bucket = [](const DoublingProblem& p) { return DoublingProblem{(p.n + 63) / 64 * 64}; };
  twice = choice(kernel, "twice");
  const bool kernel_wins = GENERATE(false, true);
  process.of_typed(4).seconds = kernel_wins ? 0.1e-3 : 0.6e-3;
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  tuned(process.runtime(), twice).tune({50});
  const fs::path bundle = directory.path() / "out.kiln";
  Release release(process);
  const PrecompileReport report = release.run({job_of(twice, 50)}, bundle);
  CHECK(report.records == 2);    // the choice's and its kernel's
  CHECK(report.instances == 2);  // the default and the winner
  CHECK(report.failures.empty());

  process.device->timings = 0;
  process.calls.clear();
  process.options.store.directory = directory.path() / "empty";
  process.options.store.roots = {bundle};
  process.options.mode = Mode::frozen;
  const Runtime runtime = process.runtime();
  const auto f = tuned(runtime, twice);
  const PrepareReport prepared = runtime.prepare(of_choices({50, 60}));
  for (const PreparedProblem& p : prepared.problems) {
    CHECK(p.state == PreparedState::known);
    CHECK(p.alternative == (kernel_wins ? "template" : "mine"));
  }
  CHECK(runtime.statistics().compiled == 0);
  CHECK(process.device->timings == 0);
  CHECK(f.known({60})->winner().status == CandidateStatus::measured);
  Buffers data(60);
  f({}, data.y.data(), data.x.data(), 60);
  CHECK(data.doubled());
}

TEST_CASE_METHOD(TwiceInBuckets, "a bundle of a choice has what its exact problem launches",
                 "[choice][precompile]") {
  process.of_typed(4).seconds = 0.1e-3;
  tuned(process.runtime(), twice).tune({64});
  const fs::path bundle = directory.path() / "out.kiln";
  Release release(process);
  // The kernel has a record for 64, and none for 50.
  CHECK(release.run({job_of(twice, 50)}, bundle).instances == 4);
  CHECK(release.run({job_of(twice, 64)}, bundle).instances == 2);
}

TEST_CASE_METHOD(Twice, "a bundle of a choice without records has all its kernels' configs",
                 "[choice][precompile]") {
  twice.alternatives.push_back(process.way("mine", 0.5e-3));
  Release release(process);
  const fs::path bundle = directory.path() / "out.kiln";
  CHECK(release.run({job_of(twice, 50)}, bundle).instances == 4);
  SECTION("records of other types or for deterministic use stay behind") {
    auto other = twice;
    other.types = {"other"};
    tuned(process.runtime(), other).tune({50});
    const std::size_t records = release.run({job_of(twice, 50)}, bundle).records;
    CHECK(records == 1);  // the kernel's
    CHECK(release.run({job_of(other, 50)}, bundle).records == 2);
    release.options.deterministic = true;
    CHECK(release.run({job_of(other, 50)}, bundle).records == 0);
  }
}

TEST_CASE_METHOD(Twice, "mistakes in jobs of choices", "[choice][precompile]") {
  Release release(process);
  const fs::path bundle = directory.path() / "out.kiln";
  const auto refused = [&](const PrecompileJob& job, const char* why) {
    CHECK_THROWS_WITH(release.run({job}, bundle), Catch::Contains(why));
    CHECK_FALSE(fs::exists(bundle));
  };
  PrecompileJob job = job_of(twice, 50);
  job.problem = {};
  refused(job, "a problem has 0 values, but the choice has 1 problem fields");
  job = job_of(twice, 50);
  job.targets.clear();
  refused(job, "the job of choice twice has no target");
  job = job_of(twice, 50);
  job.configs = {{2, 0}};
  refused(job, "has no configs of its own");
  twice.alternatives.front().supports = [](const DoublingProblem&, const DeviceInfo& device) {
    return device.target == kHere ? "not here" : "";
  };
  refused(job_of(twice, 50), "has no kernel to compile for generic; template: not here");
}

TEST_CASE_METHOD(Twice, "a manifest's choices become jobs of the registry's",
                 "[choice][precompile]") {
  Registry registry;
  registry.add_choice({"twice", "y = 2 x", {"f32", "f64"}, [&](std::string_view type) {
                         auto made = twice;
                         made.types = {type == "f32" ? "float" : "double"};
                         return made.description();
                       }});
  Manifest manifest = of_choices({7});
  manifest.wanted[0].types = {"double"};
  manifest.wanted[0].target = "sm_90a";
  const auto jobs = jobs_for(manifest, registry);
  REQUIRE(jobs.size() == 1);
  REQUIRE(jobs[0].choice);
  CHECK(jobs[0].choice->types == std::vector<std::string>{"double"});
  CHECK(jobs[0].problem == Values{7});
  CHECK(jobs[0].targets == std::vector{Target::parse("sm_90a")});
  SECTION("of several with one name and types, the one with the problem's fields") {
    auto other = twice;
    other.types = {"double"};
    registry = {};
    registry.add_choice({"first", "", {"f64"}, [other](std::string_view) {
                           auto made = other.description();
                           made.operation.problem_fields = {"m", "n"};
                           return made;
                         }});
    registry.add_choice(
        {"second", "", {"f64"}, [other](std::string_view) { return other.description(); }});
    CHECK(jobs_for(manifest, registry)[0].problem == Values{7});
    manifest.wanted[0].problem = {{"k", 7}};
    CHECK_THROWS_WITH(jobs_for(manifest, registry), Catch::Contains("unknown problem field 'k'"));
    manifest.wanted[0].problem = {{"n", 7}};
  }
  manifest.wanted[0].types = {"int"};
  CHECK_THROWS_WITH(jobs_for(manifest, registry),
                    Catch::Contains("entry 0 (twice): there is no such choice with these types "
                                    "(known: twice<"));
  manifest.wanted[0].is_choice = false;
  CHECK_THROWS_WITH(jobs_for(manifest, registry), Catch::Contains("no such kernel"));
}

TEST_CASE("manifests name choices", "[choice][prepare]") {
  const Directory directory;
  const fs::path file = directory.path() / "wanted.json";
  Manifest manifest = of_choices({7, 8});
  manifest.wanted[1].launches = 3;
  manifest.wanted.push_back({"doubling", {}, "generic", {{"n", 9}}, {{"a", 1}}});
  manifest.write(file);
  CHECK(Manifest::read(file).wanted == manifest.wanted);
  CHECK_THAT(read_text(file), Catch::Contains("\"choice\": \"twice\""));
  const auto refused = [&](const char* entry, const char* why) {
    std::ofstream(file) << R"({"format": "kiln manifest", "version": 1, "wanted": [)" << entry
                        << "]}";
    CHECK_THROWS_WITH(Manifest::read(file), Catch::Contains("entry 0") && Catch::Contains(why));
  };
  refused(R"({"choice": "a", "kernel": "b", "types": [], "target": "t", "problem": {}})", "both");
  refused(R"({"choice": 1, "types": [], "target": "t", "problem": {}})", "`choice`");
  refused(R"({"choice": "a", "types": [], "target": "t", "problem": {}, "config": {"a": 1}})",
          "a choice has no `config`");
}
