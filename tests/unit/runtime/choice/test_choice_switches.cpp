// Which alternatives are let in, by options and variables.
#include "choice_fixture.hpp"
#include "choices_test.hpp"
#include "kiln/communicators.hpp"
#include "kiln/doctor.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

struct Switched : Chooser {
  explicit Switched(const fs::path& directory) : Chooser(directory) {
    kernel_takes(1e-3);
    DoublingWay exact = way("exact", 5e-4);
    exact.numerics = "in order";
    all.alternatives.push_back(exact);
    all.alternatives.push_back(way("quick", 1e-4));
  }
  std::string chosen(const ChoiceOptions& switches = {}) {
    return tuned(runtime(), all, switches).chosen({40}).name;
  }
  Doubling all = twice();
};

}  // namespace

TEST_CASE("options and variables leave alternatives out", "[choice][switches]") {
  Directory directory;
  Switched process(directory.path());
  CHECK(process.chosen() == "quick");
  CHECK(process.chosen({.backends = {"template", "exact"}}) == "exact");
  CHECK(process.chosen({.backends = {"-quick"}}) == "exact");
  CHECK(process.chosen({.backends = {"quick", "exact", "-quick"}}) == "exact");
  CHECK(process.chosen({.numerics = "in order"}) == "exact");
  const EnvironmentVariable all("KILN_BACKENDS", "template,cublaslt");
  CHECK(process.chosen() == "template");
  CHECK(process.chosen({.backends = {"-template"}}) == "quick");
  const EnvironmentVariable own("KILN_BACKENDS_TWICE", "-quick");
  CHECK(process.chosen() == "exact");
  CHECK(tuned(process.runtime(), process.all).alternatives({40})[2].why_not ==
        "KILN_BACKENDS_TWICE leaves it out");
}

TEST_CASE("what other alternatives were let in does not change what is on record",
          "[choice][switches]") {
  Directory directory;
  Switched process(directory.path());
  CHECK(process.chosen() == "quick");
  CHECK(process.chosen({.backends = {"-quick"}}) == "exact");
  process.calls.clear();
  CHECK(process.chosen() == "quick");
  CHECK(process.chosen({.backends = {"-quick"}}) == "exact");
  CHECK(process.calls.empty());
}

TEST_CASE("what takes no part is on record, with today's reason", "[choice][switches]") {
  Directory directory;
  Switched process(directory.path());
  process.all.alternatives[1].supports = [](const DoublingProblem&, const DeviceInfo&) {
    return std::string("not today");
  };
  const std::vector<LeftOut> by_option{{"exact", "not today"},
                                       {"quick", "ChoiceOptions::backends leaves it out"}};
  const auto f = tuned(process.runtime(), process.all, {.backends = {"-quick"}});
  CHECK(f.tune({40}).left_out == by_option);
  CHECK(f.known({40})->left_out == by_option);
  // As other programs read it.
  bool found = false;
  const auto expected = nlohmann::json::parse(R"([
      {"name": "exact", "why": "not today"},
      {"name": "quick", "why": "ChoiceOptions::backends leaves it out"}])");
  change_records(directory.path(), [&](const auto& record) {
    found = found || record.value("left_out", nlohmann::json()) == expected;
    return false;
  });
  CHECK(found);
  {
    const EnvironmentVariable all("KILN_BACKENDS", "-quick");
    process.calls.clear();
    const TuneResult again = tuned(process.runtime(), process.all).tune({40});
    CHECK(again.from_store);
    CHECK(again.left_out ==
          std::vector<LeftOut>{{"exact", "not today"}, {"quick", "KILN_BACKENDS leaves it out"}});
    CHECK(process.calls.empty());
  }
  process.all.alternatives[1].supports = {};
  CHECK(tuned(process.runtime(), process.all, {.numerics = "in order"}).tune({50}).left_out ==
        std::vector<LeftOut>{{"template", "it states no numerics class, and in order is asked for"},
                             {"quick", "it states no numerics class, and in order is asked for"}});
}

TEST_CASE("a name that nothing has, and a set that is empty, are errors that say what there is",
          "[choice][switches]") {
  Directory directory;
  Switched process(directory.path());
  const auto runtime = process.runtime();
  const auto refused = [&](const ChoiceOptions& options) {
    try {
      tuned(runtime, process.all, options);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string known = "`qick`, which is none of its alternatives: template, exact, quick";
  CHECK(refused({.backends = {"qick"}}) == "choice twice: ChoiceOptions::backends names " + known);
  CHECK(refused({.backends = {"-qick"}}) == "choice twice: ChoiceOptions::backends names " + known);
  CHECK(refused({.choose = "qick"}) == "choice twice: ChoiceOptions::choose names " + known);
  CHECK(
      refused({.backends = {"-template", "-exact", "-quick"}})
          .find(
              "no alternative is left: template: ChoiceOptions::backends leaves it out; exact:") !=
      std::string::npos);
  CHECK(refused({.numerics = "other"}).find("exact: its numerics class is in order, not other") !=
        std::string::npos);
  CHECK(refused({.backends = {"template"}, .choose = "quick"}) ==
        "choice twice: ChoiceOptions::choose asks for quick, but ChoiceOptions::backends leaves it "
        "out");
  {
    const EnvironmentVariable own("KILN_BACKENDS_TWICE", "qick");
    CHECK(refused({}) == "choice twice: KILN_BACKENDS_TWICE names " + known);
  }
  const EnvironmentVariable choose("KILN_CHOOSE_TWICE", "qick");
  CHECK(refused({}) == "choice twice: KILN_CHOOSE_TWICE names " + known);
}

TEST_CASE("the variable of all choices may name what a choice lacks", "[choice][switches]") {
  Directory directory;
  Switched process(directory.path());
  std::string log;
  process.options.log = [&](LogLevel level, std::string_view text) {
    if (level == LogLevel::warning) log += text;
  };
  {
    const EnvironmentVariable all("KILN_BACKENDS", "cublastl");
    CHECK(process.chosen() == "quick");
    CHECK_THAT(log,
               Catch::Contains("choice twice: KILN_BACKENDS names none of its alternatives, so "
                               "all take part: template, exact, quick"));
  }
  log.clear();
  {
    const EnvironmentVariable all("KILN_BACKENDS", "other, exact ,-nothing");
    CHECK(process.chosen() == "exact");
  }
  CHECK(log.find("KILN_BACKENDS") == std::string::npos);
  const EnvironmentVariable all("KILN_BACKENDS", "other, -quick");
  CHECK(process.chosen() == "exact");
}

TEST_CASE("a forced alternative is used, is marked, and leaves no record", "[choice][switches]") {
  Directory directory;
  Switched process(directory.path());
  {
    const EnvironmentVariable choose("KILN_CHOOSE_TWICE", "exact");
    const auto f = tuned(process.runtime(), process.all);
    CHECK(f.chosen({40}).name == "exact");
    CHECK(f.chosen({40}).forced);
    const TuneResult result = f.tune({40});
    CHECK(result.candidates.size() == 1);
    CHECK(result.left_out == std::vector<LeftOut>{{"template", "KILN_CHOOSE_TWICE is exact"},
                                                  {"quick", "KILN_CHOOSE_TWICE is exact"}});
    CHECK(result.winner().seconds == Approx(5e-4));
    CHECK(result.warnings == std::vector<std::string>{
                                 "KILN_CHOOSE_TWICE forces this alternative: nothing is recorded"});
    CHECK_FALSE(f.known({40}));
  }
  CHECK(directory.entries(".json").empty());
  CHECK(process.chosen() == "quick");
}

TEST_CASE("a forced alternative that cannot do a problem says why", "[choice][switches]") {
  Directory directory;
  Switched process(directory.path());
  process.all.alternatives[2].supports = [](const DoublingProblem&, const DeviceInfo&) {
    return std::string("not today");
  };
  const auto f = tuned(process.runtime(), process.all, {.choose = "quick"});
  CHECK_THROWS_WITH(f.prepare({40}), Catch::Contains("quick: not today"));
}

TEST_CASE("the doctor shows a choice's variables, and warns of others", "[choice][switches]") {
  const EnvironmentVariable own("KILN_BACKENDS_TWICE", "-quick");
  const EnvironmentVariable typo("KILN_BACKEND_TWICE", "-quick");
  const std::vector<std::string> unknown = unknown_variables();
  CHECK(std::ranges::count_if(unknown, [](const auto& line) {
          return line.find("KILN_BACKEND_TWICE") != std::string::npos;
        }) == 1);
  CHECK(std::ranges::count_if(unknown, [](const auto& line) {
          return line.find("KILN_BACKENDS_TWICE") != std::string::npos;
        }) == 0);
  const auto all = settings({});
  const auto found =
      std::ranges::find_if(all, [](const auto& s) { return s.name == "KILN_BACKENDS_TWICE"; });
  REQUIRE(found != all.end());
  CHECK(found->value == "-quick");
  CHECK(std::ranges::count_if(all, [](const auto& s) { return s.name == "KILN_CHOOSE_*"; }) == 1);
}

TEST_CASE("descriptions that contradict themselves are refused", "[choice][switches]") {
  Directory directory;
  Switched process(directory.path());
  const auto runtime = process.runtime();
  Doubling two = process.all;
  two.alternatives[1].name = "quick";
  CHECK_THROWS_WITH(tuned(runtime, two), Catch::Contains("another alternative has that name"));
  two = process.all;
  two.alternatives[1].call = {};
  CHECK_THROWS_WITH(tuned(runtime, two), Catch::Contains("it needs one of"));
  two = process.all;
  two.alternatives[0].workspace = [](Named, const DoublingProblem&) { return std::size_t{1}; };
  CHECK_THROWS_WITH(tuned(runtime, two), Catch::Contains("are those of a `call`"));
  two = process.all;
  two.alternatives.clear();
  CHECK_THROWS_WITH(tuned(runtime, two), Catch::Contains("it has no alternatives"));
  two = process.all;
  two.name = "no name";
  CHECK_THROWS_AS(tuned(runtime, two), UserError);
  two = process.all;
  two.alternatives[1].cublaslt.emplace();
  CHECK_THROWS_WITH(tuned(runtime, two), Catch::Contains("it needs one of"));
}
