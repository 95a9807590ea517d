// Spans: how they nest, which listeners get them, and the trace that is made of them.
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <nlohmann/json.hpp>

#include "kiln_test.hpp"
#include "runtime/support/logged_span.hpp"
#include "runtime/support/spans.hpp"
#include "trace_schema.hpp"
#include "unit/runtime/engine_fixture.hpp"

using namespace kiln;
using namespace kiln::runtime;
using namespace kiln::test;

namespace {

/// Spans as they came, by name.
struct Heard {
  struct One {
    std::uint64_t id, parent;
    std::chrono::system_clock::time_point begin, end;
    std::map<std::string, std::string> attributes;
    bool failed;
  };
  std::mutex mutex;
  std::map<std::string, One> spans;

  SpanSink sink() {
    return [this](const SpanData& s) {
      One one{s.id, s.parent, s.begin, s.end, {}, s.failed};
      for (const SpanAttribute& a : s.attributes)
        one.attributes.emplace(std::string(a.name), std::string(a.value));
      std::lock_guard lock(mutex);
      spans.insert_or_assign(std::string(s.name), one);
    };
  }
};

}  // namespace

TEST_CASE("spans nest, on a thread and across threads", "[runtime][spans][threads]") {
  Heard heard;
  Spans spans(heard.sink());
  {
    SpanScope outer(&spans, "kiln.tune", {{"kernel", "gemm"}});
    {
      SpanScope inner(&spans, "kiln.load");
      inner.end();
      SpanScope after(&spans, "kiln.verify");
      after.end();
    }
    std::jthread([&, part_of = SpanScope::here()] {
      const SpanParent parent(part_of);
      SpanScope other(&spans, "kiln.compile");
      other.end();
    }).join();
    outer.set("end", "finished");
    outer.end();
    SpanScope last(&spans, "kiln.search");
    last.end();
  }
  const auto& tune = heard.spans.at("kiln.tune");
  CHECK(tune.parent == 0);
  const auto age = std::chrono::system_clock::now() - tune.end;
  CHECK(age >= std::chrono::seconds(-5));
  CHECK(age < std::chrono::seconds(60));
  CHECK(tune.attributes ==
        std::map<std::string, std::string>{{"kernel", "gemm"}, {"end", "finished"}});
  for (const char* part : {"kiln.load", "kiln.verify", "kiln.compile"}) {
    INFO(part);
    const auto& span = heard.spans.at(part);
    CHECK(span.parent == tune.id);
    CHECK(span.id != tune.id);
    CHECK(span.begin >= tune.begin);
    CHECK(span.end <= tune.end);
    CHECK_FALSE(span.failed);
  }
  CHECK(heard.spans.at("kiln.search").parent == 0);
  CHECK(SpanScope::here().id == 0);
}

TEST_CASE("work that an exception ends has failed", "[runtime][spans]") {
  Heard heard;
  Spans spans(heard.sink());
  CHECK_THROWS([&] {
    SpanScope scope(&spans, "kiln.load");
    throw std::runtime_error("no");
  }());
  CHECK(heard.spans.at("kiln.load").failed);
}

TEST_CASE("a sink that throws disturbs nothing", "[runtime][spans]") {
  Spans spans([](const SpanData&) { throw std::runtime_error("no"); });
  SpanScope scope(&spans, "kiln.load");
  CHECK(scope.end() >= 0);
}

TEST_CASE("nobody listens: nothing is kept", "[runtime][spans]") {
  Spans spans;
  SpanScope scope(&spans, "kiln.load");
  CHECK(SpanScope::here().spans == &spans);
  CHECK(scope.end() >= 0);
  SpanScope none(nullptr, "kiln.load");
  CHECK(none.end() >= 0);
}

TEST_CASE("work of a tuning is in its log and in the spans", "[runtime][spans]") {
  Heard heard;
  Spans spans(heard.sink());
  TraceLog log("gemm");
  {
    SpanScope tune(&spans, "kiln.tune");
    LoggedSpan waits(log, "wait for compilers");
    waits.end();
    LoggedSpan load(log, "load", "config", "x=1");
    load.end();
    LoggedSpan refused(log, "verify", "config", "x=2");
  }
  CHECK(heard.spans.contains("kiln.wait_for_compilers"));
  CHECK(heard.spans.at("kiln.load").attributes ==
        std::map<std::string, std::string>{{"kernel", "gemm"}, {"config", "x=1"}});
  CHECK(heard.spans.at("kiln.verify").failed);
  const auto logged = log.take();
  REQUIRE(logged.size() == 2);
  CHECK(logged[0].name == "wait for compilers");
  CHECK(logged[1].detail == "x=1");
}

TEST_CASE("spans become a trace when their runtime ends", "[runtime][spans][trace]") {
  const Directory directory;
  const auto file = directory.path() / "t.json";
  {
    Spans spans({}, Spans::File{file, {3, "rank 3 of 4"}});
    SpanScope tune(&spans, "kiln.tune", {{"kernel", "gemm"}, {"problem", "m=1"}});
    std::jthread([&] {
      SpanScope compile(&spans, "kiln.compile", {{"kernel", "gemm"}, {"config", "x=\xff"}});
      compile.end();
    }).join();
    SpanScope load(&spans, "kiln.load", {{"kernel", "gemm"}, {"config", "x=\xff"}});
    load.end();
    SpanScope verify(&spans, "kiln.verify", {{"kernel", "gemm"}, {"config", "x=\xff"}});
  }
  const auto trace = nlohmann::json::parse(read_text(file));
  const auto problems = trace_problems(trace);
  for (const std::string& problem : problems) UNSCOPED_INFO(problem);
  CHECK(problems.empty());
  std::map<std::string, int> names;
  for (const auto& event : trace.at("traceEvents")) {
    CHECK(event.at("pid") == 3);
    ++names[event.at("name")];
    if (event.at("name") == "verify") CHECK(event.at("args").at("failed") == true);
    if (event.at("ph") == "s") CHECK(event.at("ts") > 1e15);  // microseconds since 1970
  }
  CHECK(names["binary"] == 2);
  CHECK(names["compile"] == 1);
  CHECK(names["process_name"] == 1);
}

TEST_CASE("a trace that is full says how much came later", "[runtime][spans][trace]") {
  const Directory directory;
  const auto file = directory.path() / "t.json";
  std::vector<std::string> warnings;
  {
    Spans spans({}, Spans::File{file, {3, ""}, 4},
                [&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
    for (int i = 0; i < 4; ++i) SpanScope(&spans, "kiln.load").end();
    CHECK(warnings.empty());
    for (int i = 0; i < 7; ++i) SpanScope(&spans, "kiln.verify").end();
  }
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find(file.string() + " is full") != std::string::npos);
  const auto trace = nlohmann::json::parse(read_text(file));
  CHECK(trace_problems(trace) == std::vector<std::string>{});
  CHECK(trace.at("otherData").at("dropped") == 7);
  std::map<std::string, int> names;
  for (const auto& event : trace.at("traceEvents")) ++names[event.at("name")];
  CHECK(names["load"] == 4);
  CHECK(names["verify"] == 0);
  CHECK(names["7 later spans are not in this trace"] == 1);
}

TEST_CASE("a trace that cannot be written is a warning", "[runtime][spans][trace]") {
  std::string warning;
  {
    const Spans spans({}, Spans::File{"/nonexistent/t.json", {}},
                      [&](LogLevel, std::string_view text) { warning = text; });
  }
  CHECK(warning.find("/nonexistent/t.json") != std::string::npos);
}
