#include "cache/entry.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "cache/wire.hpp"

namespace kiln::cache {
namespace {

// Like PNG's: a byte beyond ASCII, both line ends, and end-of-file show transfers as text.
constexpr std::string_view kMagic("\x89KILN\r\n\x1a", 8);
constexpr std::size_t kFrame = kMagic.size() + sizeof(std::uint32_t) + sizeof(Digest);

bool begins_like_entry(std::span<const std::byte> file) {
  return file.size() >= kMagic.size() &&
         std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

bool is_read(std::uint32_t version) {
  return kOldestEntryVersion <= version && version <= kEntryVersion;
}

void write_key(WireWriter& out, const Key& key) {
  out.put(key.digest).put(key.portable);
  out.put(static_cast<std::uint32_t>(key.portable_fields));
  out.put(static_cast<std::uint32_t>(key.fields.size()));
  for (const KeyField& field : key.fields)
    out.put(static_cast<std::uint8_t>(field.type)).put_sized(field.name).put_sized(field.value);
}

std::optional<Key> read_key(WireReader& in, std::uint32_t version) {
  Key key;
  key.digest = in.take_array<sizeof(Digest)>();
  if (version >= 2) {
    key.portable = in.take_array<sizeof(Digest)>();
    key.portable_fields = in.take<std::uint32_t>();
  }
  const auto count = in.take<std::uint32_t>();
  if (!in.ok() || key.portable_fields > count) return std::nullopt;
  for (std::uint32_t i = 0; i < count; ++i) {  // not trusted: memory grows only with bytes read
    KeyField field;
    field.type = static_cast<char>(in.take<std::uint8_t>());
    field.name = in.take_sized();
    field.value = in.take_sized();
    if (!in.ok() || kFieldTypes.find(field.type) == kFieldTypes.npos) return std::nullopt;
    key.fields.push_back(std::move(field));
  }
  return key;
}

DecodedEntry no_entry(DecodeStatus status, std::string why) {
  DecodedEntry entry;
  entry.status = status;
  entry.why = std::move(why);
  return entry;
}

}  // namespace

std::vector<std::byte> encode_entry(const Key& key, std::span<const std::byte> payload) {
  const auto magic = std::as_bytes(std::span(kMagic));
  std::vector<std::byte> file(magic.begin(), magic.end());
  WireWriter out(file);
  out.put(kEntryVersion);
  write_key(out, key);
  out.put(static_cast<std::uint64_t>(payload.size()));
  const std::size_t header = file.size(), body = header + payload.size();
  file.resize(body + sizeof(Digest));
  std::ranges::copy(payload, file.begin() + static_cast<std::ptrdiff_t>(header));
  std::ranges::copy(sha256(std::span(file).first(body)),
                    file.begin() + static_cast<std::ptrdiff_t>(body));
  return file;
}

DecodedEntry decode_entry(std::span<const std::byte> file) {
  if (file.size() < kFrame) return no_entry(DecodeStatus::damaged, "it is shorter than any entry");
  if (!begins_like_entry(file))
    return no_entry(DecodeStatus::damaged, "it does not begin like an entry");
  const auto body = file.first(file.size() - sizeof(Digest));
  const Digest checksum = sha256(body);
  if (std::memcmp(checksum.data(), file.data() + body.size(), checksum.size()) != 0)
    return no_entry(DecodeStatus::damaged, "its checksum does not match");

  // Magic, version and checksum keep their places in every version: only a whole file is newer.
  WireReader in(body.subspan(kMagic.size()));
  const auto version = in.take<std::uint32_t>();
  if (!is_read(version))
    return no_entry(version > kEntryVersion ? DecodeStatus::newer : DecodeStatus::older,
                    "format version " + std::to_string(version) + ", but this Kiln reads " +
                        std::to_string(kOldestEntryVersion) + " to " +
                        std::to_string(kEntryVersion));
  std::optional<Key> key = read_key(in, version);
  const auto size = in.take<std::uint64_t>();
  if (!key || !in.ok() || size != in.left())
    return no_entry(DecodeStatus::damaged, "its lengths do not add up");

  DecodedEntry entry;
  entry.status = DecodeStatus::valid;
  entry.key = *std::move(key);
  entry.payload_size = static_cast<std::size_t>(size);
  entry.payload_offset = body.size() - entry.payload_size;
  return entry;
}

EntryFront decode_front(std::span<const std::byte> front) {
  EntryFront result;
  if (!begins_like_entry(front)) return result;
  WireReader in(front.subspan(kMagic.size()));
  result.version = in.take<std::uint32_t>();
  if (is_read(result.version)) result.key = read_key(in, result.version);
  result.cut = !in.ok();
  return result;
}

}  // namespace kiln::cache
