// The store's formats, byte for byte. A difference here is a new format: it needs a new version
// number, a line in cache/FORMAT.md, and a golden file of its own beside the old one. The golden
// files were written from FORMAT.md by other means than the code under test.
#include <cctype>
#include <fstream>
#include <iterator>
#include <string>

#include <nlohmann/json.hpp>

#include "cache/entry.hpp"
#include "cache/record.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using nlohmann::json;

namespace {

std::string read_text(const std::string& name) {
  std::ifstream file(std::string(KILN_GOLDEN_DIRECTORY) + "/" + name, std::ios::binary);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Two hexadecimal digits per byte; line ends and blanks are layout.
std::vector<std::byte> from_hex(const std::string& text) {
  std::string digits;
  for (unsigned char c : text)
    if (!std::isspace(c)) digits += static_cast<char>(c);
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoul(digits.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::string to_hex_lines(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    text += kDigits[std::to_integer<unsigned>(bytes[i]) >> 4];
    text += kDigits[std::to_integer<unsigned>(bytes[i]) & 15];
    if (i % 32 == 31 || i + 1 == bytes.size()) text += '\n';
  }
  return text;
}

/// One field of each type, the first four of which say what is wanted.
Key golden_key(const char* kind) {
  const std::vector<std::string> options{"-O3", "-std=c++20"};
  return detail::KeyBuilder(kind, 1)
      .add("source", sha256(std::string_view("__global__ void k() {}")))
      .add("entry", "k<Config{128}>")
      .made_with()
      .add("options", options)
      .add("threads", std::int64_t{-256})
      .finish();
}

std::vector<std::byte> golden_payload() {
  std::vector<std::byte> payload;
  for (int i = 0; i < 100; ++i) payload.push_back(static_cast<std::byte>(i * 37));
  return payload;
}

json golden_record() {
  return {{"complete", false},
          {"candidates",
           {{{"config", {{"block", 128}}}, {"ms", {0.125, 0.1, 3e-7}}},
            {{"config", {{"block", 1024}}}, {"rejected", "needs 1 \"GiB\"\nof shared memory"}}}},
          {"count", std::uint64_t{18446744073709551615u}}};
}

/// What version 1 told of it.
Key without_portable(Key key) {
  key.portable = {};
  key.portable_fields = 0;
  return key;
}

void check_same(const Key& key, const Key& golden) {
  CHECK(key.digest == golden.digest);
  CHECK(key.portable == golden.portable);
  CHECK(key.portable_fields == golden.portable_fields);
  CHECK(key.fields == golden.fields);
}

void check_binary(const std::string& golden, const Key& key) {
  const auto file = from_hex(golden);
  const auto entry = cache::decode_entry(file);
  REQUIRE(entry.status == cache::DecodeStatus::valid);
  check_same(entry.key, key);
  const auto payload = std::span(file).subspan(entry.payload_offset, entry.payload_size);
  CHECK(std::vector(payload.begin(), payload.end()) == golden_payload());
  const auto front = cache::decode_front(file);
  REQUIRE(front.key);
  check_same(*front.key, key);
}

void check_record(const std::string& golden, const Key& key) {
  const auto record = cache::decode_record(golden);
  REQUIRE(record.status == cache::DecodeStatus::valid);
  check_same(record.key, key);
  CHECK(record.record == golden_record());
}

}  // namespace

TEST_CASE("the bytes of a binary entry have not changed", "[golden][cache]") {
  CHECK(cache::kEntryVersion == 2);  // with a new version, a new file here
  const std::string golden = read_text("binary_v2.hex");
  CHECK(to_hex_lines(cache::encode_entry(golden_key("binary"), golden_payload())) == golden);
  check_binary(golden, golden_key("binary"));
}

TEST_CASE("the text of a record has not changed", "[golden][cache]") {
  CHECK(cache::kRecordVersion == 2);
  const std::string golden = read_text("record_v2.json");
  CHECK(cache::encode_record(golden_key("record"), golden_record()) == golden);
  check_record(golden, golden_key("record"));
}

TEST_CASE("entries and records of version 1 are still read", "[golden][cache]") {
  check_binary(read_text("binary_v1.hex"), without_portable(golden_key("binary")));
  check_record(read_text("record_v1.json"), without_portable(golden_key("record")));
}
