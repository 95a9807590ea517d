#include <limits>

#include "cache/record.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::DecodeStatus;
using nlohmann::json;

namespace {

json sample() {
  return {{"complete", true},
          {"candidates", {{{"block", 128}, {"ms", 0.1}}, {{"block", 256}, {"ms", 1e-300}}}},
          {"note", "line\nbreak \"quoted\" \u00e9"},
          {"big", std::numeric_limits<std::uint64_t>::max()},
          {"small", std::numeric_limits<std::int64_t>::min()}};
}

std::string sealed(std::string text) {
  const std::size_t end = text.rfind(",\n  \"sha256\"");
  const std::string checksum = to_hex(sha256(std::string_view(text).substr(0, end)));
  return text.replace(end + 15, 64, checksum);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace

TEST_CASE("a record reads back as it was written", "[cache][record]") {
  const Key key = make_key("gemm", "record");
  for (const json& record : {sample(), json(), json(3.5), json::array(), json("x")}) {
    const auto decoded = cache::decode_record(cache::encode_record(key, record));
    REQUIRE(decoded.status == DecodeStatus::valid);
    CHECK(decoded.record == record);
    CHECK(decoded.key == key);
    CHECK(decoded.key.fields == key.fields);
  }
}

TEST_CASE("a record is JSON that shows its key and value", "[cache][record]") {
  const Key key = make_key("gemm", "record");
  const json file = json::parse(cache::encode_record(key, sample()));
  CHECK(file["digest"] == key.hex());
  CHECK(file["key"][3] == json({"text", "entry", "gemm"}));
  CHECK(file["record"] == sample());
}

TEST_CASE("numbers that JSON lacks and bytes that are not UTF-8 are replaced", "[cache][record]") {
  const Key key = detail::KeyBuilder("record", 1).add("name", "a\xff").finish();
  const json record = {{"ms", std::numeric_limits<double>::infinity()}, {"text", "b\xfe"}};
  const auto decoded = cache::decode_record(cache::encode_record(key, record));
  REQUIRE(decoded.status == DecodeStatus::valid);
  CHECK(decoded.record == json{{"ms", nullptr}, {"text", "b\ufffd"}});
  CHECK(decoded.key.fields == cache::printable(key).fields);
  CHECK(decoded.key.fields.back().value == "a\ufffd");
}

TEST_CASE("a record cut anywhere or with one flipped bit is damaged", "[cache][record]") {
  std::string text = cache::encode_record(make_key("gemm", "record"), sample());
  std::size_t accepted = 0;
  for (std::size_t size = 0; size < text.size(); ++size)
    accepted += cache::decode_record(text.substr(0, size)).status != DecodeStatus::damaged;
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    const char saved = text[bit / 8];
    text[bit / 8] = static_cast<char>(saved ^ (1 << (bit % 8)));
    accepted += cache::decode_record(text).status != DecodeStatus::damaged;
    text[bit / 8] = saved;
  }
  CHECK(accepted == 0);
  CHECK(cache::decode_record(text + "\n").status == DecodeStatus::damaged);
  CHECK(cache::decode_record(text).status == DecodeStatus::valid);
}

TEST_CASE("only a whole record of another version is older or newer", "[cache][record]") {
  const std::string text = cache::encode_record(make_key("gemm", "record"), sample());
  REQUIRE(sealed(text) == text);
  const std::string newer = replaced(text, "\"version\": 2", "\"version\": 3");
  CHECK(cache::decode_record(newer).status == DecodeStatus::damaged);
  CHECK(cache::decode_record(sealed(newer)).status == DecodeStatus::newer);
  const std::string older = replaced(text, "\"version\": 2", "\"version\": 0");
  CHECK(cache::decode_record(sealed(older)).status == DecodeStatus::older);
}

TEST_CASE("what is malformed behind a fitting checksum is damaged", "[cache][record]") {
  const std::string text = cache::encode_record(make_key("gemm", "record"), json(1));
  const std::pair<const char*, const char*> lies[] = {
      {"\"format\"", "\"farmat\""},
      {"\"version\": 2", "\"version\": \"1\""},
      {"\"version\": 2", "\"version\": -1"},
      {"\"version\": 2", "\"version\": 1.5"},
      {"\"digest\": \"", "\"digest\": \"0"},
      {"\"portable\": \"", "\"portable\": \"0"},
      {"\"portable\": ", "\"portables\": "},
      {"\"portable_fields\": 6", "\"portable_fields\": 7"},  // more than there are
      {"\"portable_fields\": 6", "\"portable_fields\": -1"},
      {"\"portable_fields\": 6", "\"portable_fields\": \"6\""},
      {"\"portable_fields\"", "\"portable_field\""},
      {"\"key\": [", "\"key\": [7, "},
      {"\"key\": [", "\"key\": [[1,2,3], "},
      {"\"key\": [", "\"key\": [[\"text\",\"a\"], "},
      {"[\"kind\",", "[\"sort\","},
      {"\"record\": ", "\"recall\": "},
      {"{", "["},
  };
  for (const auto& [from, to] : lies) {
    INFO(from << " -> " << to);
    CHECK(cache::decode_record(sealed(replaced(text, from, to))).status == DecodeStatus::damaged);
  }
}

TEST_CASE("a record nested beyond all measure is damaged, not a crash", "[cache][record]") {
  const std::string text = cache::encode_record(make_key("deep"), json(1));
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 300'000; ++i) deep += open;
    CHECK(cache::decode_record(sealed(replaced(text, "\"record\": 1", "\"record\": " + deep)))
              .status == DecodeStatus::damaged);
  }
  CHECK_FALSE(cache::parse_record(std::string(300'000, '[') + std::string(300'000, ']')));
  const std::string brackets(1000, '[');  // in a text they nest nothing
  const json record{{"text", "\"\\" + brackets}};
  CHECK(cache::decode_record(cache::encode_record(make_key("text"), record)).record == record);
  CHECK_FALSE(cache::is_too_deep(record));
}

TEST_CASE("a payload is a record if it is JSON and not nested too deeply", "[cache][record]") {
  for (const json& record : {sample(), json(), json(3.5), json::array(), json("x")})
    CHECK(cache::parse_record(cache::record_text(record)) == record);
  for (const char* text : {"", "{", "[1,]", "1 2", "{\"a\":1}}", "nan"}) {
    INFO(text);
    CHECK_FALSE(cache::parse_record(text));
  }
  const auto text_of = [](std::size_t depth) {
    std::string text;
    for (std::size_t i = 0; i < depth; ++i) text += i % 2 == 0 ? "[" : "{\"a\":";
    text += "0";
    for (std::size_t i = depth; i > 0; --i) text += i % 2 == 1 ? "]" : "}";
    return text;
  };
  constexpr int kMost = cache::kRecordDepth;
  for (const int depth : {kMost - 1, kMost, kMost + 1, kMost + 2}) {
    INFO(depth);
    const std::string text = text_of(static_cast<std::size_t>(depth));
    CHECK(cache::parse_record(text).has_value() == (depth <= kMost));
    CHECK(cache::parse_record(text, 1).has_value() == (depth <= kMost + 1));
    CHECK(cache::is_too_deep(json::parse(text)) == (depth > kMost));
  }
}
