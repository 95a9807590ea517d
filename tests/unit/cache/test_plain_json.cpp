#include <limits>
#include <random>
#include <string>

#include "cache/plain_json.hpp"
#include "cache/record.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using nlohmann::json;

namespace {

/// Equal in kind, too: to the library 1 equals 1.0.
void check_same(const json& read, const json& library) {
  CHECK(read.type() == library.type());
  CHECK(read == library);
  CHECK(read.dump() == library.dump());
}

}  // namespace

TEST_CASE("plain JSON reads as the library reads it", "[cache][record]") {
  for (const std::string text : {"0",
                                 "-1",
                                 "7",
                                 "0.0",
                                 "-0.0",
                                 "1e5",
                                 "1.5E-7",
                                 "2.5e+3",
                                 "0e0",
                                 "999999999999999999",
                                 "-999999999999999999",
                                 "0.1000000000000000055511151231257827",
                                 "4.9e-324",
                                 "true",
                                 "false",
                                 "null",
                                 "\"\"",
                                 "\"a b\"",
                                 "[]",
                                 "{}",
                                 " [ 1 ,\t2.0,\r\n\"x\" ] ",
                                 R"({"b":{"d":[[],{}],"c":null},"a":[true,{"z":-3}]})"}) {
    CAPTURE(text);
    const auto read = cache::parse_plain(text, 10);
    REQUIRE(read);
    check_same(*read, json::parse(text));
  }
}

TEST_CASE("what is not plain JSON is left to the library", "[cache][record]") {
  for (const std::string text : {"",
                                 " ",
                                 "01",
                                 "-",
                                 "-0",
                                 "-01",
                                 "1.",
                                 ".5",
                                 "1e",
                                 "1e+",
                                 "+1",
                                 "1 2",
                                 "tru",
                                 "nulll",
                                 "1000000000000000000",
                                 "1e999",
                                 "1e-400",
                                 "\"",
                                 "\"a",
                                 "\"\\n\"",
                                 "\"\xc3\xa9\"",
                                 "\"\x01\"",
                                 "\"\x7f\"",
                                 "[",
                                 "[1",
                                 "[1,",
                                 "[1,]",
                                 "[,]",
                                 "[1 2]",
                                 "{",
                                 "{1:2}",
                                 "{\"a\"",
                                 "{\"a\":",
                                 "{\"a\":1",
                                 "{\"a\":1,}",
                                 "{\"a\" 1}",
                                 "{\"a\":1,\"a\":2}",
                                 "]",
                                 "NaN",
                                 "1x",
                                 "[[[[]]]]"}) {
    CAPTURE(text);
    CHECK_FALSE(cache::parse_plain(text, 3));
  }
  CHECK(cache::parse_plain("[[[]]]", 3));
  CHECK(cache::parse_plain("{\"a\":[{}]}", 3));
  CHECK_FALSE(cache::parse_plain("{\"a\":[{}]}", 2));
}

TEST_CASE("a damaged record is judged by the library alone or by both alike", "[cache][record]") {
  const std::string whole = json{{"samples", {1e-3, 2.25e-4, 17, -4}},
                                 {"text", "some text"},
                                 {"inner", {{"yes", true}, {"none", nullptr}, {"list", {{}, {}}}}}}
                                .dump(2);
  std::minstd_rand random(7);
  const std::string letters = "{}[]\",:.0123456789eE+-\\ utrfalsn\n\x80";
  std::size_t read_by_both = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = whole;
    for (unsigned changes = random() % 3; changes-- > 0;)
      text[random() % text.size()] = letters[random() % letters.size()];
    const auto read = cache::parse_plain(text, 100);
    const json library = json::parse(text, nullptr, false);
    if (!read) continue;
    ++read_by_both;
    if (library.is_discarded() || library.dump() != read->dump() || library != *read) {
      CAPTURE(text);
      FAIL("they differ");
    }
  }
  CHECK(read_by_both > 1000);
}

TEST_CASE("what is discarded leaves nothing behind", "[cache][record]") {
  json deep = json::array();
  for (int i = 0; i < 100; ++i) deep = json{{"in", std::move(deep)}, {"beside", {1, 2}}};
  cache::discard(deep);
  CHECK(deep.empty());
  json number = 3;
  cache::discard(number);
  CHECK(number == 3);
}
