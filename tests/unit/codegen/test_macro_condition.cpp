#include "codegen/macro_condition.hpp"
#include "kiln_test.hpp"

using namespace kiln::codegen;

namespace {

Certainty evaluate(std::string_view condition) {
  KnownMacros known;
  known.defined = {{"YES", "1"}, {"NINE", "9"}, {"EMPTY", ""}, {"WORD", "other"}, {"HEX", "0x10"}};
  known.undefined = {"NO"};
  return evaluate_condition(condition, known);
}

}  // namespace

TEST_CASE("conditions that are certain", "[codegen][macro]") {
  for (const char* text : {"1",
                           "defined(YES)",
                           "defined YES",
                           "!defined(NO)",
                           "!defined NO",
                           "YES",
                           "!NO",
                           "NINE > 8",
                           "NINE == 9 && !defined(NO)",
                           "defined(X) || defined(YES)",
                           "YES || X",
                           "X || 1",
                           "HEX == 16",
                           "010 == 8",
                           "0b11 == 3",
                           "1'000 == 1000",
                           "201103L >= 199711L",
                           "(1 ? 2 : X) == 2",
                           "X ? 1 : 1",
                           "1 + 2 * 3 == 7",
                           "(1 + 2) * 3 == 9",
                           "7 - 2 - 1 == 4",
                           "1 << 4 == 16",
                           "~0 == -1",
                           "-1 < 0",
                           "defined ( YES )",
                           "true",
                           "EMPTY || 1",
                           "NINE % 4 == 1 && NINE / 4 == 2",
                           "(6 & 3) == 2 && (6 | 3) == 7 && (6 ^ 3) == 5"}) {
    CAPTURE(text);
    CHECK(evaluate(text) == Certainty::yes);
  }
  for (const char* text :
       {"0", "defined(NO)", "!defined(YES)", "NO", "NINE < 9", "X && 0", "NO && X", "0 && f(1)",
        "defined(NO) && (X > 3 || __has_include(<a.h>))", "false", "0L", "!YES", "NO > 0"}) {
    CAPTURE(text);
    CHECK(evaluate(text) == Certainty::no);
  }
}

TEST_CASE("everything else is unknown", "[codegen][macro]") {
  for (const char* text : {"",
                           "X",
                           "defined(X)",
                           "!X",
                           "X && YES",
                           "NO || X",
                           "X > 3",
                           "WORD",
                           "EMPTY",
                           "f(0)",
                           "YES(3)",
                           "__has_include(<a.h>)",
                           "__has_include(\"a.h\") || 0",
                           "__has_cpp_attribute(x)",
                           "1 /0",
                           "1 % 0",
                           "(1",
                           "1)",
                           "0 0",
                           "&& 0",
                           "0 &&",
                           "'a' == 97",
                           "\"s\"",
                           "0 and X",
                           "1.5",
                           "-1 < 0u",
                           "18446744073709551615",
                           "99999999999999999999",
                           "1 << 63",
                           "1 << 64",
                           "1 << -1",
                           "9223372036854775807 + 1",
                           "X ? 1 : 0",
                           "defined",
                           "defined(",
                           "0 ? 1",
                           "#",
                           "1 ? 0",
                           "0x",
                           "0xg",
                           "09",
                           "1 == 1 == X"}) {
    CAPTURE(text);
    CHECK(evaluate(text) == Certainty::unknown);
  }
  CHECK(evaluate(std::string_view("0\0", 2)) == Certainty::unknown);
}

TEST_CASE("deep nesting is unknown rather than a deep stack", "[codegen][macro]") {
  const std::string deep(1000000, '(');
  CHECK(evaluate(deep + "0") == Certainty::unknown);
  CHECK(evaluate(std::string(1000000, '!') + "0") == Certainty::unknown);
  std::string sum = "0";
  for (int i = 0; i < 10000; ++i) sum += "+0";
  CHECK(evaluate(sum) == Certainty::no);
}

TEST_CASE("a macro that is forgotten is unknown", "[codegen][macro]") {
  KnownMacros known;
  known.defined = {{"A", "1"}};
  known.undefined = {"B"};
  CHECK(known.mentions("A"));
  known.forget("A");
  known.forget("B");
  CHECK_FALSE(known.mentions("A"));
  CHECK(evaluate_condition("A || B", known) == Certainty::unknown);
}

TEST_CASE("what conditions ask for is found", "[codegen][macro]") {
  const auto found = find_has_include(
      "defined(X) && __has_include( <a/b.h> ) || __has_include_next(\"c(1).h\") && __has_include(M)"
      " && defined(__has_include)");
  REQUIRE(found.size() == 3);
  CHECK(found[0].delimiter == '<');
  CHECK(found[0].name == "a/b.h");
  CHECK(found[1].delimiter == '"');
  CHECK(found[1].name == "c(1).h");
  CHECK(found[2].delimiter == 0);
  CHECK(find_has_include("__has_include").empty());
  CHECK(find_has_include("__has_include(").empty());
  CHECK(find_has_include("__has_include(<a").empty());
}
