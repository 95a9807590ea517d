#include "kiln/manifest.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/engine_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

std::string refusal(const fs::path& file, const std::string& text) {
  write_text(file, text);
  try {
    Manifest::read(file);
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

bool names(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a manifest reads back as it was written", "[runtime][manifest]") {
  Directory directory;
  const fs::path file = directory.path() / "wanted.json";
  Manifest manifest;
  manifest.write(file);
  CHECK(Manifest::read(file).wanted.empty());
  manifest.wanted.push_back(
      {"gemm", {"float", "int"}, "sm_90a", {{"m", 1}, {"n", -5}}, {{"a", 2}}});
  manifest.wanted.push_back({"k", {}, "x86-64-v3", {{"n", std::int64_t{1} << 62}}, {}});
  manifest.wanted.push_back({"k", {}, "x86-64-v3", {{"n", 1}}, {}, std::uint64_t{1} << 63});
  manifest.write(file);
  CHECK(Manifest::read(file).wanted == manifest.wanted);
  const std::string text = read_text(file);
  manifest.write(file);
  CHECK(read_text(file) == text);
}

TEST_CASE("what is wrong in a manifest is named", "[runtime][manifest]") {
  Directory directory;
  const fs::path file = directory.path() / "wanted.json";
  CHECK_THROWS_AS(Manifest::read(directory.path() / "none.json"), UserError);
  CHECK_THROWS_AS(Manifest::read(directory.path()), UserError);
  const std::string head = R"({"format": "kiln manifest", "version": 1, "wanted": )";
  for (const char* text : {"", "[]", "{", "{}", "null", R"({"format": "other", "version": 1})"})
    CHECK(names(refusal(file, text), "wanted.json"));
  CHECK(names(refusal(file, R"({"format": "kiln manifest", "version": 2, "wanted": []})"),
              "version"));
  CHECK(names(refusal(file, head + "7}"), "`wanted`"));
  CHECK(names(refusal(file, head + "[7]}"), "entry 0"));
  const std::string good =
      R"({"kernel": "k", "types": [], "target": "sm_80", "problem": {"n": 1}})";
  const auto entry = [&](const std::string& item) {
    return refusal(file, head + "[" + good + "," + item + "]}");
  };
  CHECK(entry(good).empty());
  CHECK(names(entry(R"({"types": [], "target": "sm_80", "problem": {}})"), "`kernel`"));
  CHECK(names(entry(R"({"kernel": 1, "types": [], "target": "sm_80", "problem": {}})"), "entry 1"));
  CHECK(names(entry(R"({"kernel": "k", "types": "f", "target": "a", "problem": {}})"), "`types`"));
  CHECK(names(entry(R"({"kernel": "k", "types": [1], "target": "a", "problem": {}})"), "`types`"));
  CHECK(names(entry(R"({"kernel": "k", "types": [], "target": "a"})"), "`problem`"));
  CHECK(names(entry(R"({"kernel": "k", "types": [], "target": "a", "problem": {"n": 1.5}})"),
              "problem.n"));
  CHECK(names(entry(R"({"kernel": "k", "types": [], "target": "a", "problem": {"n": 1},
                        "config": {"a": 18446744073709551615}})"),
              "config.a"));
}

TEST_CASE("a manifest that cannot be written says why", "[runtime][manifest]") {
  Directory directory;
  CHECK_THROWS_AS(Manifest{}.write(directory.path() / "none" / "wanted.json"), EnvironmentError);
}
