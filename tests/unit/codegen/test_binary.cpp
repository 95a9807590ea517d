#include <cstring>

#include "codegen/binary.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::codegen;

namespace {

Binary sample() {
  Binary b;
  b.target = {Target::Kind::cuda, "sm_90a"};
  b.symbol = "_Z4gemmIfEvPT_";
  b.resources = {128, 8, 12, 64, 49152, 256};
  b.steps = {{"_Z6reduceIfEvPT_", {32, 0, 0, 0, 1024, 512}},
             {"_Z4tailIfEvPT_", {16, 4, 4, 8, 0, 0}}};
  b.log = std::string("warning: \0 inside", 17);
  std::vector<std::byte> code;
  for (int i = 0; i < 300; ++i) code.push_back(static_cast<std::byte>(i));
  b.code = std::move(code);
  return b;
}

bool same(const Binary& a, const Binary& b) {
  return a.target == b.target && a.symbol == b.symbol && a.resources == b.resources &&
         a.steps == b.steps && a.log == b.log && a.code == b.code;
}

}  // namespace

TEST_CASE("a binary survives its wire form", "[codegen][binary]") {
  for (Binary b : {sample(), Binary{}}) {
    const auto bytes = serialize(b);
    const auto back = parse_binary(bytes);
    REQUIRE(back);
    CHECK(same(*back, b));
  }
  Binary host = sample();
  host.target = {Target::Kind::host, "x86-64-v3"};
  CHECK(same(*parse_binary(serialize(host)), host));
}

TEST_CASE("the wire form has not moved", "[codegen][binary]") {
  Binary b;
  b.target = {Target::Kind::host, "a"};
  b.symbol = "s";
  b.resources.registers = 0x01020304;
  b.code = std::vector{std::byte{0xff}};
  // 78 bytes up to the code, which begins at the next multiple of 64.
  unsigned char expected[129] = {'K', 'i', 'l', 'n', 'B', 'i', 'n', '\n', 3, 0, 0, 0,   1,
                                 0,   0,   0,   1,   0,   0,   0,   0,    0, 0, 0, 'a', 1,
                                 0,   0,   0,   0,   0,   0,   0,   's',  4, 3, 2, 1};
  expected[70] = 1;  // length of the code, behind the count of steps and the log's length
  expected[128] = 0xff;
  const auto bytes = serialize(b);
  REQUIRE(bytes.size() == sizeof expected);
  CHECK(std::memcmp(bytes.data(), expected, sizeof expected) == 0);
}

TEST_CASE("a truncated or extended binary is refused", "[codegen][binary]") {
  auto bytes = serialize(sample());
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    CHECK_FALSE(parse_binary(detail::Bytes(bytes).part(0, n)));
  }
  bytes.push_back(std::byte{0});
  CHECK_FALSE(parse_binary(bytes));
}

TEST_CASE("damaged bytes never crash the parser", "[codegen][binary]") {
  const auto good = serialize(sample());
  const std::size_t header = 8 + 4 + 4;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      auto bytes = good;
      bytes[at] = static_cast<std::byte>(value);
      if (bytes == good) continue;
      const auto parsed = parse_binary(bytes);
      // Only the kind (1: host) has another legal value within the header.
      const bool legal = at == 12 && value == 1;
      if (at < header && !legal) CHECK_FALSE(parsed);
    }
  }
}

TEST_CASE("lengths beyond the end, and near 2^64, are refused", "[codegen][binary]") {
  for (unsigned char top : {0x7f, 0x80, 0xff}) {
    auto bytes = serialize(sample());
    for (std::size_t i = 16; i < 24; ++i) bytes[i] = static_cast<std::byte>(top);
    CHECK_FALSE(parse_binary(bytes));
  }
}
