#include "cache/entry.hpp"

#include <algorithm>
#include <concepts>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace kiln::cache {
namespace {

// Like PNG's: a byte beyond ASCII, both line ends, and end-of-file show transfers as text.
constexpr std::string_view kMagic("\x89KILN\r\n\x1a", 8);
constexpr std::string_view kTypes = "ksild";
constexpr std::size_t kFrame = kMagic.size() + sizeof(std::uint32_t) + sizeof(Digest);

template <std::unsigned_integral T>
void append(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

void append_sized(std::string& out, std::string_view text) {
  append(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}

std::string encode_header(const Key& key, std::uint64_t payload_size) {
  std::string header(kMagic);
  append(header, kEntryVersion);
  header.append(reinterpret_cast<const char*>(key.digest.data()), key.digest.size());
  append(header, static_cast<std::uint32_t>(key.fields.size()));
  for (const KeyField& field : key.fields) {
    header += field.type;
    append_sized(header, field.name);
    append_sized(header, field.value);
  }
  append(header, payload_size);
  return header;
}

/// Takes from the front; every read is checked against what is left.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  bool read(T& value) {
    if (rest_.size() < sizeof(T)) return false;
    value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i)
      value |= static_cast<T>(std::to_integer<T>(rest_[i]) << (8 * i));
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }

  bool read(Digest& digest) {
    if (rest_.size() < digest.size()) return false;
    std::copy_n(rest_.begin(), digest.size(), digest.begin());
    rest_ = rest_.subspan(digest.size());
    return true;
  }

  bool read_sized(std::string& text) {
    std::uint32_t size = 0;
    if (!read(size) || size > rest_.size()) return false;
    text.assign(reinterpret_cast<const char*>(rest_.data()), size);
    rest_ = rest_.subspan(size);
    return true;
  }

  std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

std::optional<Key> read_key(Reader& reader) {
  Key key;
  std::uint32_t count = 0;
  if (!reader.read(key.digest) || !reader.read(count)) return std::nullopt;
  for (; count > 0; --count) {  // `count` is not trusted: memory grows only with bytes read
    KeyField field;
    std::uint8_t type = 0;
    if (!reader.read(type) || !reader.read_sized(field.name) || !reader.read_sized(field.value))
      return std::nullopt;
    field.type = static_cast<char>(type);
    if (kTypes.find(field.type) == kTypes.npos) return std::nullopt;
    key.fields.push_back(std::move(field));
  }
  return key;
}

DecodedEntry not_valid(DecodeStatus status, std::string why) {
  DecodedEntry entry;
  entry.status = status;
  entry.why = std::move(why);
  return entry;
}

}  // namespace

std::vector<std::byte> encode_entry(const Key& key, std::span<const std::byte> payload) {
  const std::string header = encode_header(key, payload.size());
  std::vector<std::byte> file(header.size() + payload.size() + sizeof(Digest));
  auto end = std::ranges::copy(std::as_bytes(std::span(header)), file.begin()).out;
  end = std::ranges::copy(payload, end).out;
  std::ranges::copy(sha256(std::span<const std::byte>(file.begin(), end)), end);
  return file;
}

DecodedEntry decode_entry(std::span<const std::byte> file) {
  if (file.size() < kFrame) return not_valid(DecodeStatus::damaged, "shorter than any entry");
  if (std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0)
    return not_valid(DecodeStatus::damaged, "does not begin like an entry");
  const auto body = file.first(file.size() - sizeof(Digest));
  const Digest checksum = sha256(body);
  if (std::memcmp(checksum.data(), file.data() + body.size(), checksum.size()) != 0)
    return not_valid(DecodeStatus::damaged, "checksum differs");

  // Magic, version and checksum keep their places in every version: only a whole file is newer.
  Reader reader(body.subspan(kMagic.size()));
  std::uint32_t version = 0;
  reader.read(version);
  if (version != kEntryVersion)
    return not_valid(version > kEntryVersion ? DecodeStatus::newer : DecodeStatus::older,
                     "format version " + std::to_string(version) + ", this Kiln reads " +
                         std::to_string(kEntryVersion));
  std::optional<Key> key = read_key(reader);
  std::uint64_t size = 0;
  if (!key || !reader.read(size) || size != reader.left())
    return not_valid(DecodeStatus::damaged, "lengths do not add up");

  DecodedEntry entry;
  entry.status = DecodeStatus::valid;
  entry.key = *std::move(key);
  entry.payload_size = static_cast<std::size_t>(size);
  entry.payload_offset = body.size() - entry.payload_size;
  return entry;
}

}  // namespace kiln::cache
