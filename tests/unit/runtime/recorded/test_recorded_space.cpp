#include <cmath>
#include <random>

#include <sys/stat.h>

#include "kiln_test.hpp"
#include "t4_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

const std::string kOne = t4_entry(R"({"a":1})", "2,4");

double only_seconds(const T4Files& files, const std::string& metadata) {
  return files.read(t4({kOne}, metadata)).seconds(0);
}

}  // namespace

TEST_CASE("a T4 file is read, plain or gzip", "[runtime][recorded]") {
  const T4Files files;
  const RecordedSpace space = files.read(bowl());
  CHECK(space.name() == "space");
  CHECK(space.size() == 16);
  CHECK(space.works() == 14);
  REQUIRE(space.parameters().size() == 3);
  CHECK(space.parameters()[0].name == "block");
  CHECK(space.parameters()[0].values == Values{16, 32, 64, 128});
  CHECK(space.parameters()[2].values == Values{15});  // never varies, but is there
  CHECK(space.config(space.best()) == Values{64, 4, 15});
  CHECK(space.describe(space.best()) == "block=64,items=4,fixed=15");
  CHECK(space.optimum() == Approx(1e-3));
  CHECK(space.compile_seconds(0) == Approx(0.1));
  const auto failed = space.find(Values{128, 8, 15});
  REQUIRE(failed);
  CHECK(space.status(*failed) == CandidateStatus::compile_failed);
  CHECK(std::isinf(space.seconds(*failed)));
  CHECK(space.samples(*failed).empty());
  CHECK_FALSE(space.find(Values{64, 3, 15}));
  CHECK_FALSE(space.find(Values{64, 4}));
  CHECK_FALSE(space.find(Values{}));

  const RecordedSpace packed(files.write(gzip(bowl()), "packed.t4.json.gz"));
  CHECK(packed.digest() == space.digest());
  CHECK(packed.name() == "packed");
  CHECK(files.read(t4({kOne})).digest() != space.digest());
}

TEST_CASE("units of time", "[runtime][recorded]") {
  const T4Files files;
  CHECK(only_seconds(files, R"({"timeunit":"miliseconds"})") == Approx(3e-3));
  CHECK(only_seconds(files, R"({"timeunit":"Milliseconds"})") == Approx(3e-3));
  CHECK(only_seconds(files, R"({"timeunit":"s"})") == Approx(3));
  CHECK(only_seconds(files, R"({"timeunit":"seconds"})") == Approx(3));
  CHECK(only_seconds(files, R"({"timeunit":"us"})") == Approx(3e-6));
  CHECK(only_seconds(files, R"({"timeunit":"microseconds"})") == Approx(3e-6));
  CHECK(only_seconds(files, R"({"timeunit":"ns"})") == Approx(3e-9));
  CHECK(only_seconds(files, R"({})") == Approx(3e-3));
  CHECK(only_seconds(files, R"({"timeunit":null})") == Approx(3e-3));
  // A unit that follows the results holds for them all the same.
  const RecordedSpace late =
      files.read(R"({"results":[)" + kOne + R"(],"metadata":{"timeunit":"s"}})");
  CHECK(late.seconds(0) == Approx(3));
  CHECK(late.samples(0)[1] == Approx(4));
  CHECK(late.compile_seconds(0) == Approx(100));
  const std::string wrong = files.refusal(t4({kOne}, R"({"timeunit":"fortnights"})"));
  CHECK(has(wrong, "fortnights"));
  CHECK(has(wrong, "milliseconds, "));
  CHECK(has(wrong, "space.t4.json"));
}

TEST_CASE("a measurement stands in for missing repeats", "[runtime][recorded]") {
  const T4Files files;
  const auto entry = [](const std::string& measurements) {
    return R"({"configuration":{"a":1},"times":{},"measurements":[)" + measurements + "]}";
  };
  const auto seconds = [&](const std::string& m) {
    return files.read(t4({entry(m)}, R"({"timeunit":"s"})")).seconds(0);
  };
  CHECK(seconds(R"({"name":"time","value":5,"unit":""})") == Approx(5));
  CHECK(seconds(R"({"name":"time","value":5})") == Approx(5));
  CHECK(seconds(R"({"name":"time","value":5,"unit":"us"})") == Approx(5e-6));
  CHECK(seconds(R"({"name":"GFLOP/s","value":9,"unit":"GFLOP/s"},)"
                R"({"name":"time","value":5,"unit":"ms"})") == Approx(5e-3));
  CHECK(has(files.refusal(t4({entry(R"({"name":"time","value":5,"unit":"parsec"})")})), "parsec"));
  CHECK(has(files.refusal(t4({entry("")})), "neither"));
  CHECK(has(files.refusal(t4({entry(R"({"name":"time","value":-5})")})), "-5"));
  // Beside repeats, a rate's unit does not matter.
  CHECK(files
            .read(t4({R"({"configuration":{"a":1},"times":{"runtimes":[2]},)"
                      R"("measurements":[{"name":"rate","value":5,"unit":"GFLOP/s"}]})"}))
            .seconds(0) == Approx(2e-3));
  // An error's name in the place of the value is a failure.
  const RecordedSpace failed =
      files.read(t4({R"({"configuration":{"a":1},"times":{},"measurements":)"
                     R"([{"name":"time","value":"CompilationFailedConfig","unit":"ms"}]})",
                     t4_entry(R"({"a":2})", "1")}));
  CHECK(failed.status(0) == CandidateStatus::compile_failed);
}

TEST_CASE("values that are not integers keep their text and their order", "[runtime][recorded]") {
  const T4Files files;
  const auto column = [&](const std::vector<std::string>& values) {
    std::vector<std::string> entries;
    for (const auto& v : values) entries.push_back(t4_entry("{\"a\":" + v + "}", "1"));
    return files.read(t4(entries)).parameters()[0];
  };
  using Texts = std::vector<std::string>;
  RecordedParameter p = column({"32", "-4", "8.0"});
  CHECK(p.values == Values{-4, 8, 32});
  CHECK(p.kind == FieldKind::integer);
  p = column({"true", "false"});
  CHECK(p.values == Values{0, 1});
  CHECK(p.texts == Texts{"false", "true"});
  CHECK(p.kind == FieldKind::boolean);
  p = column({"2.5", "0.25", "1"});
  CHECK(p.values == Values{0, 1, 2});
  CHECK(p.texts == Texts{"0.25", "1", "2.5"});
  CHECK(p.kind == FieldKind::integer);
  p = column({R"("row")", R"("column")"});
  CHECK(p.values == Values{0, 1});
  CHECK(p.texts == Texts{"column", "row"});
  CHECK(p.kind == FieldKind::enumeration);
  p = column({R"("64")", R"("8")"});
  CHECK(p.values == Values{8, 64});
  CHECK(p.kind == FieldKind::integer);
  p = column({"null", R"("x")", "true", "1", "9223372036854775807", "18446744073709551615"});
  CHECK(p.values.size() == 6);
  CHECK(p.kind == FieldKind::enumeration);
  CHECK(files.read(t4({t4_entry(R"({"a":"row","b":0.5})", "1")})).describe(0) == "a=row,b=0.5");
}

TEST_CASE("whatever is not correct is a failure", "[runtime][recorded]") {
  const T4Files files;
  const auto status = [&](const std::string& word) {
    const RecordedSpace space =
        files.read(t4({t4_entry(R"({"a":1})", "1", word), t4_entry(R"({"a":2})", "1")}));
    CHECK(space.invalidity(0) == word);
    return space.status(0);
  };
  CHECK(status("correct") == CandidateStatus::measured);
  CHECK(status("compile") == CandidateStatus::compile_failed);
  CHECK(status("runtime") == CandidateStatus::launch_failed);
  CHECK(status("timeout") == CandidateStatus::launch_failed);
  CHECK(status("constraints") == CandidateStatus::violates_constraint);
  CHECK(status("correctness") == CandidateStatus::wrong_result);
  CHECK(status("eaten by a dog") == CandidateStatus::launch_failed);
}

TEST_CASE("the space is the list of configs", "[runtime][recorded]") {
  const T4Files files;
  const RecordedSpace space =
      files.read(t4({t4_entry(R"({"a":3,"b":1})", "", "runtime"), t4_entry(R"({"b":2,"a":1})", "5"),
                     t4_entry(R"({"a":2,"b":1})", "4")}));
  const DynamicSpace dynamic = space.dynamic();
  CHECK(dynamic.default_config() == Values{1, 2});  // the first that works
  CHECK(dynamic.default_config(Target::Kind::host) == Values{1, 2});
  CHECK(dynamic.parameters()[0].values == Values{1, 2, 3});
  const DeviceLimits limits;
  CHECK(dynamic.violated(Values{2, 1}, {}, limits) == nullptr);
  CHECK(dynamic.violated(Values{3, 1}, {}, limits) == nullptr);  // fails, but is listed
  REQUIRE(dynamic.violated(Values{2, 2}, {}, limits) != nullptr);
  CHECK(dynamic.violated(Values{2, 2}, {}, limits)->reason == "listed in the recorded space");
}

TEST_CASE("what is wrong with a T4 file is said", "[runtime][recorded]") {
  const T4Files files;
  const std::string other = t4_entry(R"({"a":2})", "3");
  const auto says = [&](const std::string& content, const std::vector<std::string>& words) {
    const std::string said = files.refusal(content);
    INFO("content: " << content.substr(0, 300) << "\nsaid: " << said);
    CHECK(has(said, "space.t4.json"));
    for (const std::string& word : words) CHECK(has(said, word));
  };
  says("", {"not JSON"});
  says("hello", {"not JSON"});
  says("[]", {"list"});
  says("7", {"results"});
  says("{}", {"`results` is missing"});
  says(R"({"results":{}})", {"not a list"});
  says(R"({"results":7})", {"not a list"});
  says(t4({}), {"empty"});
  says(t4({kOne, "7"}), {"results[1]", "not an object"});
  says(t4({kOne, "[]"}), {"results[1]", "a list"});
  says(t4({kOne, "{}"}), {"results[1]", "`configuration` is missing"});
  says(t4({kOne, R"({"configuration":{}})"}), {"results[1]", "empty"});
  says(t4({kOne, R"({"configuration":7})"}), {"results[1]", "not an object"});
  says(t4({kOne, t4_entry(R"({"b":2})", "3")}), {"results[1]", "'b'", "first entry"});
  says(t4({t4_entry(R"({"a":1,"b":1})", "2"), other}), {"results[1]", "'b'", "missing"});
  says(t4({t4_entry(R"({"a":1,"a":1})", "2")}), {"results[0]", "'a'", "twice"});
  says(t4({t4_entry(R"({"a":[1]})", "2")}), {"results[0]", "'a'", "a list"});
  says(t4({t4_entry(R"({"a":{}})", "2")}), {"results[0]", "'a'", "an object"});
  says(t4({kOne, other, kOne}), {"results[2]", "results[0]", "a=1"});
  says(t4({kOne, other, t4_entry(R"({"a":2.0})", "9")}), {"results[2]", "results[1]", "a=2"});
  says(t4({kOne, t4_entry(R"({"a":2})", "3,-1")}), {"results[1]", "runtimes[1]", "-1"});
  says(t4({kOne, t4_entry(R"({"a":2})", "0,1")}), {"results[1]", "runtimes[0]", "0"});
  says(t4({kOne, t4_entry(R"({"a":2})", "3,NaN")}), {"results[1]", "NaN"});
  says(t4({kOne, t4_entry(R"({"a":2})", "3,Infinity")}), {"results[1]", "Infinity"});
  says(t4({kOne, t4_entry(R"({"a":2})", "3,1e999")}), {"results[1]", "1e999"});
  says(t4({kOne, t4_entry(R"({"a":2})", R"("fast")")}), {"results[1]", "not a number"});
  says(t4({kOne, t4_entry(R"({"a":2})", "[1]")}), {"results[1]", "a list"});
  says(t4({kOne, t4_entry(R"({"a":2})", "1", "correct", "-5")}),
       {"results[1]", "compilation", "-5"});
  says(t4({kOne, t4_entry(R"({"a":2})", "1", "correct", "\"long\"")}),
       {"results[1]", "compilation"});
  says(t4({t4_entry(R"({"a":1})", "1", "compile")}), {"none of the"});
  says(t4({kOne}, "7") + "}", {"not JSON"});
  says(t4({kOne}, R"({"timeunit":7})"), {"timeunit"});
}

TEST_CASE("a file cut anywhere is refused", "[runtime][recorded]") {
  const T4Files files;
  const std::string text = t4({kOne, t4_entry(R"({"a":2})", "3")}), packed = gzip(text);
  for (std::size_t n = 0; n < text.size(); ++n)
    CHECK_FALSE(files.refusal(text.substr(0, n)).empty());
  for (std::size_t n = 0; n < packed.size(); ++n)
    CHECK_FALSE(files.refusal(packed.substr(0, n)).empty());
  CHECK(has(files.refusal(packed.substr(0, packed.size() / 2)), "truncated"));
  std::string damaged = packed;
  damaged[packed.size() - 6] ^= 1;  // the checksum
  CHECK(has(files.refusal(damaged), "damaged"));
}

TEST_CASE("a damaged file is read or refused, nothing else", "[runtime][recorded]") {
  const T4Files files;
  std::mt19937 random(7);
  const std::string text = bowl(), packed = gzip(text);
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string bytes = i % 3 ? text : packed;
    for (unsigned n = 1 + random() % 3; n > 0; --n)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    refused += !files.refusal(bytes).empty();
  }
  CHECK(refused > 500);
}

TEST_CASE("hostile files take neither memory nor time", "[runtime][recorded][long]") {
  const T4Files files;
  CHECK(has(files.refusal(std::string(1000000, '[')), "space.t4.json"));
  CHECK(
      has(files.refusal(R"({"results":[{"configuration":{"a":1},"x":)" + std::string(1000000, '[')),
          "deep"));
  const std::string entry = t4_entry(R"({"a":1})", "1");
  // One text of 80 MB; 80 MB of nothing; a million entries that say nothing new.
  CHECK(has(files.refusal(gzip(R"({"x":")" + std::string(80 << 20, 'x'))), "16 MB"));
  CHECK(has(files.refusal(gzip("{" + std::string(80 << 20, ' '))), "16 MB"));
  std::string zeros = R"({"x":[)";
  for (int i = 0; i < (40 << 20); ++i) zeros += "0,";
  CHECK(has(files.refusal(gzip(zeros)), "expands"));
  std::string many;
  for (int i = 0; i < 300; ++i) many += (i ? ",\"p" : "\"p") + std::to_string(i) + "\":1";
  CHECK(has(files.refusal(t4({t4_entry("{" + many + "}", "1")})), "256 parameters"));
  CHECK(has(files.refusal(t4({t4_entry("{\"" + std::string(5000, 'n') + "\":1}", "1")})), "bytes"));
}

TEST_CASE("only regular files are opened", "[runtime][recorded]") {
  const T4Files files;
  const auto refusal = [](const fs::path& path) {
    try {
      RecordedSpace space(path);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(has(refusal(files.path() / "none.json"), "no such file"));
  CHECK(has(refusal(files.path()), "not a regular file"));
  const fs::path fifo = files.path() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(has(refusal(fifo), "not a regular file"));
}
