#include <algorithm>
#include <limits>

#include "cache/entry.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::DecodeStatus;

namespace {

/// The same bytes under a checksum that fits: what only the checks behind the checksum can refuse.
Buffer sealed(Buffer file) {
  const Digest checksum = sha256(std::span(file).first(file.size() - sizeof(Digest)));
  std::copy(checksum.begin(), checksum.end(), file.end() - sizeof(Digest));
  return file;
}

}  // namespace

TEST_CASE("an entry reads back as it was written", "[cache][entry]") {
  const Key key = make_key("gemm");
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100'000}}) {
    const Buffer payload = make_bytes(size), file = cache::encode_entry(key, payload);
    const auto entry = cache::decode_entry(file);
    REQUIRE(entry.status == DecodeStatus::valid);
    CHECK(entry.key.digest == key.digest);
    CHECK(entry.key.portable == key.portable);
    CHECK(entry.key.portable_fields == key.portable_fields);
    CHECK(entry.key.fields == key.fields);
    REQUIRE(entry.payload_size == size);
    CHECK(std::equal(payload.begin(), payload.end(),
                     file.begin() + static_cast<std::ptrdiff_t>(entry.payload_offset)));
  }
}

TEST_CASE("fields may hold any bytes", "[cache][entry]") {
  detail::KeyBuilder builder("binary", 1);
  builder.add("", "").add(std::string("n\0n", 3), std::string("\0\xff\n\x80", 4));
  const Key key = builder.finish();
  const auto entry = cache::decode_entry(cache::encode_entry(key, {}));
  REQUIRE(entry.status == DecodeStatus::valid);
  CHECK(entry.key.fields == key.fields);
}

TEST_CASE("an entry cut anywhere, or longer than written, is damaged", "[cache][entry]") {
  const Buffer whole = cache::encode_entry(make_key("cut"), make_bytes(300));
  std::size_t accepted = 0;
  for (std::size_t size = 0; size < whole.size(); ++size)
    accepted += cache::decode_entry(std::span(whole).first(size)).status != DecodeStatus::damaged;
  CHECK(accepted == 0);
  Buffer longer = whole;
  longer.push_back(std::byte{0});
  CHECK(cache::decode_entry(longer).status == DecodeStatus::damaged);
}

TEST_CASE("any one flipped bit makes an entry damaged", "[cache][entry]") {
  Buffer file = cache::encode_entry(make_key("flip"), make_bytes(64));
  std::size_t accepted = 0;
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    file[bit / 8] ^= std::byte{1} << (bit % 8);
    accepted += cache::decode_entry(file).status != DecodeStatus::damaged;
    file[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  CHECK(accepted == 0);
  CHECK(cache::decode_entry(file).status == DecodeStatus::valid);
}

TEST_CASE("only a whole entry of another version is older or newer", "[cache][entry]") {
  Buffer file = cache::encode_entry(make_key("version"), make_bytes(64));
  file[8] = std::byte{3};
  CHECK(cache::decode_entry(file).status == DecodeStatus::damaged);
  CHECK(cache::decode_entry(sealed(file)).status == DecodeStatus::newer);
  file[8] = std::byte{0};
  CHECK(cache::decode_entry(sealed(file)).status == DecodeStatus::older);
}

TEST_CASE("lengths that lie behind a fitting checksum are damaged", "[cache][entry]") {
  const Buffer whole = cache::encode_entry(make_key("lies"), make_bytes(64));
  constexpr std::size_t kPortableFields = 8 + 4 + 32 + 32, kCount = kPortableFields + 4,
                        kNameLength = kCount + 4 + 1;
  std::size_t accepted = 0;
  for (const std::size_t at : {kCount, kNameLength, whole.size() - 32 - 64 - 8}) {
    for (const unsigned char value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      for (std::size_t width : {1, 4, 8}) {
        Buffer file = whole;
        std::fill_n(file.begin() + static_cast<std::ptrdiff_t>(at), width, std::byte{value});
        file = sealed(file);
        if (!std::equal(file.begin(), file.end(), whole.begin()))
          accepted += cache::decode_entry(file).status != DecodeStatus::damaged;
      }
    }
  }
  CHECK(accepted == 0);
  Buffer file = whole;
  file[kPortableFields] = std::byte{7};  // of 6
  CHECK(cache::decode_entry(sealed(file)).status == DecodeStatus::damaged);
  file = whole;
  file[kCount + 4] = std::byte{'?'};  // no such field type
  CHECK(cache::decode_entry(sealed(file)).status == DecodeStatus::damaged);
}

TEST_CASE("sealed noise is never read as an entry", "[cache][entry]") {
  const Buffer whole = cache::encode_entry(make_key("noise"), make_bytes(16));
  std::size_t accepted = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    Buffer file = make_bytes(44 + seed % 200, seed);
    std::copy_n(whole.begin(), 12, file.begin());
    accepted += cache::decode_entry(sealed(file)).status != DecodeStatus::damaged;
  }
  CHECK(accepted == 0);
}

TEST_CASE("the front of an entry tells its key, or that it is cut", "[cache][entry]") {
  const Key key = make_key("front");
  const Buffer whole = cache::encode_entry(key, make_bytes(64));
  const std::size_t key_end = whole.size() - 32 - 64 - 8;
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    INFO(size);
    const auto front = cache::decode_front(std::span(whole).first(size));
    CHECK(front.key.has_value() == (size >= key_end));
    CHECK(front.cut == (size >= 8 && size < key_end));
    if (front.key) CHECK(front.key->fields == key.fields);
  }
  Buffer newer = whole;
  newer[8] = std::byte{3};
  CHECK(cache::decode_front(newer).version == 3);
  CHECK_FALSE(cache::decode_front(newer).key);
  CHECK(cache::decode_front(make_bytes(100)).version == 0);
}
