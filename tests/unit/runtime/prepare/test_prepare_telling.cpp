// What a preparation tells while it goes on: metrics, spans, and a device that is lost.
#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "kiln_test.hpp"
#include "prepare_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using enum PreparedState;

namespace {

std::map<std::string, std::uint64_t> keys_of(const Runtime& runtime) {
  std::map<std::string, std::uint64_t> keys;
  for (const auto& [state, count] : runtime.metrics().prepare_keys)
    if (count > 0) keys.emplace(state.front(), count);
  return keys;
}

using Keys = std::map<std::string, std::uint64_t>;

}  // namespace

TEST_CASE("metrics tell what became of the instances that a preparation needs",
          "[runtime][prepare][metrics]") {
  Directory directory;
  tune_into(directory.path(), 50, 8);  // all are in the store now
  Process process(directory.path());
  process.of(32).compile_log = "error: no";
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling({2, 4, 8, 16, 32}));
  CHECK(keys_of(runtime).empty());
  Manifest manifest = problems({50});
  for (const int a : {4, 16, 32}) manifest.wanted.push_back(wanted(50, a));
  SECTION("that may compile") {
    std::size_t least = 99;
    runtime.prepare(manifest, {.work = PrepareWork::compile, .progress = [&](const auto& now) {
                                 const Keys keys = keys_of(runtime);
                                 if (now.step == PrepareProgress::Step::compile && now.done == 0)
                                   least = keys.contains("waiting") ? keys.at("waiting") : 0;
                               }});
    CHECK(keys_of(runtime) == Keys{{"found", 2}, {"compiled", 1}, {"failed", 1}});
    CHECK((least == 99 || least <= 3));
    runtime.prepare(problems({50}), {.work = PrepareWork::compile});
    CHECK(keys_of(runtime) == Keys{{"found", 1}});  // of the last one alone
  }
  SECTION("that may not") {
    runtime.prepare(manifest, {.work = PrepareWork::look_up});
    CHECK(keys_of(runtime) == Keys{{"found", 2}, {"missing", 2}});
  }
  SECTION("that is stopped") {
    std::stop_source stop;
    process.compiler->on_compile = [&](const auto&) { stop.request_stop(); };
    process.options.compile_threads = 1;
    const Runtime single = process.runtime();
    const auto other = single.tuned(doubling({2, 4, 8, 16, 32, 64}));
    manifest.wanted.push_back(wanted(50, 64));
    single.prepare(manifest, {.work = PrepareWork::compile, .stop = stop.get_token()});
    CHECK(keys_of(single).at("waiting") == 2);
  }
}

TEST_CASE("a preparation is a span, and what it compiles and loads are parts of it",
          "[runtime][prepare][spans]") {
  Directory directory;
  Process process(directory.path());
  std::mutex mutex;
  struct One {
    std::string name;
    std::uint64_t id, parent;
    std::map<std::string, std::string> attributes;
  };
  std::vector<One> spans;
  process.options.spans = [&](const SpanData& s) {
    One one{std::string(s.name), s.id, s.parent, {}};
    for (const SpanAttribute& a : s.attributes)
      one.attributes.emplace(std::string(a.name), std::string(a.value));
    const std::lock_guard lock(mutex);
    spans.push_back(std::move(one));
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  runtime.prepare(problems({50, 60}), {.work = PrepareWork::compile});
  REQUIRE_FALSE(spans.empty());
  const One& whole = spans.back();
  CHECK(whole.name == "kiln.prepare");
  CHECK(whole.parent == 0);
  CHECK(whole.attributes ==
        std::map<std::string, std::string>{{"work", "compile"}, {"problems", "2"}, {"ready", "2"}});
  std::map<std::string, int> parts;
  for (const One& one : spans)
    if (one.parent == whole.id) ++parts[one.name];
  CHECK(parts["kiln.compile"] == 1);
  CHECK(parts["kiln.load"] == 1);  // both launch it
  CHECK(parts["kiln.swap"] == 2);
}

TEST_CASE("a device that is lost while a manifest is prepared is an error", "[runtime][prepare]") {
  for (const PrepareWork work : {PrepareWork::tune, PrepareWork::compile, PrepareWork::look_up}) {
    INFO(to_string(work));
    Directory directory;
    tune_into(directory.path(), 50, 8);
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    process.device->is_lost = true;
    CHECK_THROWS_AS(runtime.prepare(problems({50, 60}), {.work = work}), EnvironmentError);
  }
}
