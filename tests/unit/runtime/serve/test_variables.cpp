// Variables stand in for options, and never against them.
#include <algorithm>
#include <atomic>
#include <thread>

#include "environment_variable.hpp"
#include "kiln/communicators.hpp"
#include "kiln/doctor.hpp"
#include "kiln/error.hpp"
#include "kiln/manifest.hpp"
#include "kiln_test.hpp"
#include "modes_fixture.hpp"
#include "runtime/serve/variables.hpp"
#include "runtime/serve/wanted_file.hpp"
#include "trace_schema.hpp"

using namespace kiln;
using namespace kiln::test;
using runtime::with_variables;

namespace {

using Set = EnvironmentVariable;

std::string refusal(const char* name, const std::string& value) {
  const Set set(name, value);
  try {
    with_variables({});
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Setting setting(const std::string& name, const RuntimeOptions& options = {}) {
  for (const Setting& s : settings(options))
    if (s.name == name) return s;
  throw std::runtime_error("no setting " + name);
}

/// A run of doubling() in a mode that finds nothing.
void lack(const fs::path& store, int n) {
  Process process(store);
  process.options.mode = Mode::collect;
  const Runtime runtime = process.runtime();
  launch(runtime.tuned(doubling()), n);
}

}  // namespace

TEST_CASE("what the options leave open is filled from variables", "[runtime][variables]") {
  const RuntimeOptions plain = with_variables({});
  CHECK_FALSE(plain.mode);
  CHECK_FALSE(plain.log);
  const Set mode("KILN_MODE", "lookup_only"), seconds("KILN_MAX_SECONDS", "2.5"),
      evaluations("KILN_MAX_EVALUATIONS", "7"), threads("KILN_COMPILE_THREADS", "3"),
      measure("KILN_MEASURE", "eager"), bits("KILN_DETERMINISTIC", "1");
  const RuntimeOptions filled = with_variables({});
  CHECK(filled.mode == Mode::lookup_only);
  CHECK(filled.tuning.max_seconds == 2.5);
  CHECK(filled.tuning.max_evaluations == 7);
  CHECK(filled.compile_threads == 3);
  CHECK(filled.tuning.launching == Launching::eager);
  CHECK(filled.deterministic == true);

  RuntimeOptions chosen;
  chosen.mode = Mode::tune_now;  // the default, but chosen
  chosen.tuning.max_seconds = 1;
  chosen.tuning.max_evaluations = 2;
  chosen.compile_threads = 4;
  const RuntimeOptions kept = with_variables(chosen);
  CHECK(kept.mode == Mode::tune_now);
  CHECK(kept.tuning.max_seconds == 1);
  CHECK(kept.tuning.max_evaluations == 2);
  CHECK(kept.compile_threads == 4);

  chosen.tuning.max_seconds = 0;  // no limit
  chosen.tuning.max_evaluations = 0;
  const RuntimeOptions unlimited = with_variables(chosen);
  CHECK(unlimited.tuning.max_seconds == 0);
  CHECK(unlimited.tuning.max_evaluations == 0);
}

TEST_CASE("each mode has its name", "[runtime][variables]") {
  const std::pair<const char*, Mode> modes[] = {{"tune_now", Mode::tune_now},
                                                {"untuned", Mode::untuned},
                                                {"lookup_only", Mode::lookup_only},
                                                {"frozen", Mode::frozen},
                                                {"collect", Mode::collect}};
  for (const auto& [name, mode] : modes) {
    const Set set("KILN_MODE", name);
    CHECK(with_variables({}).mode == mode);
  }
}

TEST_CASE("KILN_TUNE switches tuning on launches off", "[runtime][variables]") {
  const Directory directory;
  for (const bool tunes : {false, true}) {
    const Set set("KILN_TUNE", tunes ? "1" : "0");
    Process process(directory.path() / (tunes ? "1" : "0"));
    const Runtime runtime = process.runtime();
    CHECK(launch(runtime.tuned(doubling()), 50));
    CHECK(runtime.statistics().tuned == (tunes ? 1 : 0));
    CHECK((process.device->timings > 0) == tunes);
  }
  const Set off("KILN_TUNE", "0");
  RuntimeOptions chosen;
  chosen.mode = Mode::tune_now;
  CHECK(with_variables(chosen).mode == Mode::tune_now);
  {
    const Set mode("KILN_MODE", "collect");
    CHECK(with_variables({}).mode == Mode::collect);  // does not tune either
  }
  const Set mode("KILN_MODE", "tune_now");
  const std::string why = refusal("KILN_TUNE", "0");
  CHECK(has(why, "KILN_TUNE is 0"));
  CHECK(has(why, "KILN_MODE=tune_now"));
  const Set other("KILN_MODE", "untuned");
  CHECK_FALSE(refusal("KILN_TUNE", "1").empty());
}

TEST_CASE("a value that makes no sense is refused by name", "[runtime][variables]") {
  const std::pair<const char*, std::vector<const char*>> wrong[] = {
      {"KILN_MODE", {"tune", "Frozen", "0"}},
      {"KILN_TUNE", {"2", "yes", " 1"}},
      {"KILN_MAX_SECONDS", {"-1", "nan", "inf", "1s", "1e999"}},
      {"KILN_MAX_EVALUATIONS", {"-1", "1.5", "x", "99999999999999999999999"}},
      {"KILN_COMPILE_THREADS", {"0", "-2", "4097", "all"}},
      {"KILN_MEASURE", {"graphs", "Eager", "1"}},
      {"KILN_DETERMINISTIC", {"yes", "2", " 1"}},
      {"KILN_ON_UNPREPARED", {"Serve", "refuse", "1"}},
      {"KILN_ISOLATION", {"on", "Always"}},
      {"KILN_CANDIDATE_SECONDS", {"0", "-1", "soon", "inf"}},
      {"KILN_LOG_LEVEL", {"verbose", "INFO", "1"}},
      {"KILN_LOG_FILE", {"/tmp/%d.log", "/tmp/x%"}},
  };
  const Directory directory;
  for (const auto& [name, values] : wrong)
    for (const char* value : values) {
      INFO(name << "=" << value);
      const std::string why = refusal(name, value);
      CHECK(has(why, name));
      CHECK(has(why, std::string("'") + value + "'"));
      CHECK(has(why, "must be"));
      const Set set(name, value);
      CHECK(setting(name).problem == why);
      Process process(directory.path());
      process.options.compile_threads = 0;
      process.options.log = {};
      CHECK_THROWS_AS(process.runtime(), UserError);
    }
  CHECK(refusal("KILN_MODE", "").empty());  // as if it were not set
}

TEST_CASE("limits of variables hold for all tunings without limits", "[runtime][variables]") {
  const Directory directory;
  const Set set("KILN_MAX_EVALUATIONS", "2");
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const TuneResult limited = handle.tune({50}, TuneOptions{});
  CHECK(limited.candidates.size() == 2);
  CHECK(limited.end == SearchEnd::evaluations);
  TuneOptions own;
  own.max_evaluations = 3;
  CHECK(handle.tune({51}, own).candidates.size() == 3);
  own.max_evaluations = 0;  // no limit, whatever the variable says
  CHECK(handle.tune({54}, own).candidates.size() == 4);
  launch(handle, 52);
  CHECK(handle.known({52})->candidates.size() == 2);
}

TEST_CASE("what was missing is added to the file of KILN_WANTED", "[runtime][variables]") {
  const Directory directory;
  const fs::path file = directory.path() / "wanted.json", store = directory.path() / "store";
  const Set set("KILN_WANTED", file.string());
  {
    Process tunes(store);
    launch(tunes.runtime().tuned(doubling()), 5);
  }
  CHECK_FALSE(fs::exists(file));  // nothing was missing
  for (const int n : {50, 60, 50}) lack(directory.path() / "other", n);
  const Manifest wanted = Manifest::read(file);
  REQUIRE(wanted.wanted.size() == 2);
  CHECK(wanted.wanted[0].kernel == "doubling");
  CHECK(wanted.wanted[0].problem == std::map<std::string, std::int64_t>{{"n", 50}});
  CHECK(wanted.wanted[1].problem == std::map<std::string, std::int64_t>{{"n", 60}});

  SECTION("a file of something else is left alone") {
    write_text(file, "dear diary");
    std::vector<std::string> warnings;
    {
      Process process(directory.path() / "third");
      process.options.mode = Mode::collect;
      process.options.log = [&](LogLevel, std::string_view text) { warnings.emplace_back(text); };
      launch(process.runtime().tuned(doubling()), 70);
    }
    CHECK(read_text(file) == "dear diary");
    CHECK(std::ranges::any_of(warnings, [&](const std::string& text) {
      return has(text, "KILN_WANTED") && has(text, file.string());
    }));
  }
  SECTION("a folder that is not there is a warning") {
    const Set nowhere("KILN_WANTED", (directory.path() / "no" / "w.json").string());
    lack(directory.path() / "third", 70);
  }
}

TEST_CASE("writers of one manifest lose nothing", "[runtime][variables][threads]") {
  const Directory directory;
  const fs::path file = directory.path() / "wanted.json";
  constexpr int kWriters = 6, kEach = 10;
  {
    std::vector<std::jthread> writers;
    for (int w = 0; w < kWriters; ++w)
      writers.emplace_back([&, w] {
        for (int i = 0; i < kEach; ++i)
          runtime::add_to_manifest(
              file, {{{"k", {}, "sm_90a", {{"n", w * kEach + i}}, {}},
                      {"launched", {}, "sm_90a", {{"n", 7}}, {}, static_cast<std::uint64_t>(i)}}});
      });
  }
  const Manifest manifest = Manifest::read(file);
  CHECK(manifest.wanted.size() == kWriters * kEach + 1);
  std::uint64_t launches = 0;
  for (const WantedInstance& one : manifest.wanted) launches += one.launches;
  CHECK(launches == kWriters * kEach * (kEach - 1) / 2);
}

TEST_CASE("messages go where variables say, if the program does not", "[runtime][variables]") {
  const Directory directory;
  const auto open = [&](bool own_log) {
    Process process(directory.path() / "store");
    if (!own_log) process.options.log = {};
    process.options.tuning.ranks = std::move(thread_communicators(1).front());
    launch(process.runtime().tuned(doubling()), 50);
  };
  const std::string name = (directory.path() / "log-%p-%r-%%").string();
  const fs::path file = directory.path() / ("log-" + std::to_string(::getpid()) + "-0-%");
  const Set set("KILN_LOG_FILE", name);
  open(true);
  CHECK_FALSE(fs::exists(file));
  open(false);
  CHECK(has(read_text(file), "info: doubling"));
  const auto before = fs::file_size(file);
  const Set level("KILN_LOG_LEVEL", "error");
  open(false);
  CHECK(fs::file_size(file) == before);
  const Set nowhere("KILN_LOG_FILE", "/nonexistent/log");
  CHECK_THROWS_AS(open(false), EnvironmentError);
  CHECK_NOTHROW(open(true));
}

TEST_CASE("KILN_TRACE gets a trace of each runtime", "[runtime][variables][trace]") {
  const Directory directory;
  const fs::path folder = directory.path() / "new" / "traces";
  const Set set("KILN_TRACE", folder.string());
  for (int i = 0; i < 2; ++i) {
    Process process(directory.path() / "store");
    launch(process.runtime().tuned(doubling()), 50 + i);
  }
  std::vector<nlohmann::json> traces;
  for (const auto& file : fs::directory_iterator(folder))
    traces.push_back(nlohmann::json::parse(read_text(file.path())));
  REQUIRE(traces.size() == 2);
  for (const auto& trace : traces) {
    const auto problems = trace_problems(trace);
    for (const std::string& problem : problems) UNSCOPED_INFO(problem);
    CHECK(problems.empty());
  }
  std::map<std::string, int> names;
  for (const auto& trace : traces)
    for (const auto& event : trace.at("traceEvents")) {
      ++names[event.at("name")];
      if (event.at("ph") != "M") CHECK(event.at("pid") == ::getpid());
    }
  for (const char* name : {"tune", "load", "verify", "time"}) {
    INFO(name);
    CHECK(names[name] >= 2);
  }
  CHECK(names["compile"] == 4);
  CHECK(names["binary"] >= 2 * 4);  // arrows
  const Set file("KILN_TRACE", "/proc/nonexistent");
  Process process(directory.path() / "store");
  CHECK_THROWS_AS(process.runtime(), EnvironmentError);
}

TEST_CASE("an unknown name gets the nearest one as advice", "[runtime][variables]") {
  const Set typo("KILN_MAX_SECOND", "1"), other("KILN_COMPLETELY_DIFFERENT", "1"),
      foreign("KILNX", "1");
  std::vector<std::string> lines = unknown_variables();
  const auto about = [&](const std::string& name) {
    std::string found;
    for (const std::string& line : lines)
      if (has(line, name + " ")) found += line;
    return found;
  };
  CHECK(has(about("KILN_MAX_SECOND"), "did you mean KILN_MAX_SECONDS?"));
  CHECK(has(about("KILN_COMPLETELY_DIFFERENT"), "not known"));
  CHECK_FALSE(has(about("KILN_COMPLETELY_DIFFERENT"), "did you mean"));
  CHECK(about("KILNX").empty());
  for (const detail::VariableEntry& v : detail::kVariables) CHECK(about(v.name).empty());
}

TEST_CASE("KILN_ON_UNPREPARED is what sealing without saying so does",
          "[runtime][variables][seal]") {
  const Directory directory;
  const auto outcome = [&](std::optional<OnUnprepared> option) {
    Process process(directory.path());
    process.options.mode = Mode::untuned;
    process.options.on_unprepared = option;
    int warnings = 0;
    process.options.log = [&](LogLevel, std::string_view text) {
      warnings += has(std::string(text), "was not prepared");
    };
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    launch(handle, 50);
    runtime.seal();
    try {
      launch(handle, 60);
    } catch (const UnpreparedError&) {
      return OnUnprepared::error;
    }
    const bool warned = warnings > 0;
    runtime.seal(OnUnprepared::error);  // what the program says holds
    CHECK_THROWS_AS(launch(handle, 61), UnpreparedError);
    return warned ? OnUnprepared::warn : OnUnprepared::serve;
  };
  CHECK(outcome({}) == OnUnprepared::serve);
  CHECK(outcome(OnUnprepared::error) == OnUnprepared::error);
  for (const auto& [name, what] :
       {std::pair("serve", OnUnprepared::serve), std::pair("warn", OnUnprepared::warn),
        std::pair("error", OnUnprepared::error)}) {
    INFO(name);
    const Set set("KILN_ON_UNPREPARED", name);
    CHECK(outcome({}) == what);
    CHECK(outcome(OnUnprepared::warn) == OnUnprepared::warn);
    CHECK(setting("KILN_ON_UNPREPARED").value == name);
  }
}

TEST_CASE("settings know each option that a variable stands in for", "[runtime][variables]") {
  RuntimeOptions options;
  options.isolation = Isolation::always;
  options.on_unprepared = OnUnprepared::warn;
  options.tuning.candidate_seconds = 2.5;
  options.store.max_files = 77;
  options.store.sharing = StoreSharing::group;
  const Set isolation("KILN_ISOLATION", "off"), files("KILN_CACHE_FILES", "5");
  for (const auto& [name, value] :
       {std::pair("KILN_ISOLATION", "always"), std::pair("KILN_ON_UNPREPARED", "warn"),
        std::pair("KILN_CANDIDATE_SECONDS", "2.5"), std::pair("KILN_CACHE_FILES", "77"),
        std::pair("KILN_CACHE_SHARED", "group")}) {
    INFO(name);
    CHECK(setting(name, options).value == value);
    CHECK(setting(name, options).from == Setting::From::option);
  }
  CHECK(setting("KILN_ISOLATION").value == "off");
  CHECK(setting("KILN_ISOLATION").problem.empty());
  CHECK(setting("KILN_CACHE_FILES").problem.empty());
}

TEST_CASE("settings say what is wrong with values that are read later", "[runtime][variables]") {
  const Directory directory;
  const std::string here = directory.path().string(), none = here + "/none";
  const std::tuple<const char*, std::string, std::string> values[] = {
      {"KILN_CACHE_FILES", "many", "'many'"},
      {"KILN_CACHE_SIZE", "5 GB", "'5 GB'"},
      {"KILN_CACHE_SHARED", "all", "'all'"},
      {"KILN_WANTED", none + "/wanted.json", none},
      {"KILN_TRACE", "/dev/null/of/it", "/dev/null"},
      {"KILN_CACHE_FILES", "1K", ""},
      {"KILN_CACHE_SHARED", "user", ""},
      {"KILN_WANTED", here + "/wanted.json", ""},
      {"KILN_TRACE", none + "/new", ""}};
  for (const auto& [name, value, problem] : values) {
    INFO(name << "=" << value);
    const Set set(name, value);
    CHECK(setting(name).problem.empty() == problem.empty());
    CHECK(has(setting(name).problem, problem));
  }
  CHECK_FALSE(fs::exists(none));  // asking makes nothing
}

TEST_CASE("settings say what holds and where it comes from", "[runtime][variables]") {
  CHECK(setting("KILN_MODE").from == Setting::From::defaults);
  const Set mode("KILN_MODE", "untuned");
  CHECK(setting("KILN_MODE").value == "untuned");
  CHECK(setting("KILN_MODE").from == Setting::From::environment);
  RuntimeOptions options;
  options.mode = Mode::collect;
  options.store.directory = "/scratch";
  options.store.roots = {"/a", "/b"};
  CHECK(setting("KILN_MODE", options).value == "collect");
  CHECK(setting("KILN_MODE", options).from == Setting::From::option);
  CHECK(setting("KILN_CACHE_DIR", options).value == "/scratch");
  CHECK(setting("KILN_ROOTS", options).value == "/a:/b");
  const Set processes("KILN_COMPILE_PROCESSES", "many");
  CHECK(has(setting("KILN_COMPILE_PROCESSES").problem, "'many'"));
  std::size_t own = 0;
  for (const detail::VariableEntry& v : detail::kVariables)
    own += v.of == detail::VariableEntry::Of::kiln;
  CHECK(settings().size() == own);
}
