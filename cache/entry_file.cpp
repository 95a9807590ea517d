#include "cache/entry_file.hpp"

#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "cache/record.hpp"

namespace kiln::cache {
namespace {

// Most keys end within the first; a second read of the front costs little.
constexpr std::size_t kFront = 4096, kLongFront = 256 * 1024;

}  // namespace

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

detail::Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Summary summarize(EntryKind kind, std::span<const std::byte> file) {
  if (kind == EntryKind::binary) {
    DecodedEntry entry = decode_entry(file);
    return {entry.status, std::move(entry.why), std::move(entry.key)};
  }
  DecodedRecord record = decode_record(text_of(file));
  return {record.status, std::move(record.why), std::move(record.key)};
}

bool same_key(EntryKind kind, const Key& found, const Key& wanted) {
  return found.digest == wanted.digest &&
         (found.portable_fields == 0 ||
          (found.portable_fields == wanted.portable_fields && found.portable == wanted.portable)) &&
         (found.fields == wanted.fields ||
          (kind == EntryKind::record && found.fields == printable(wanted).fields));
}

namespace {

/// `read` gets the most bytes to read from the front.
template <class Read>
std::optional<Key> key_of(EntryKind kind, const std::string& hex, bool* unread, const Read& read) {
  std::optional<Key> key;
  const auto read_noting = [&](std::size_t limit) {
    ReadFile file = read(limit);
    if (unread && file.status == ReadFile::Status::failed) *unread = true;
    return file;
  };
  if (kind == EntryKind::binary) {
    for (const std::size_t limit : {kFront, kLongFront}) {
      const ReadFile file = read_noting(limit);
      if (file.status != ReadFile::Status::read) return std::nullopt;
      EntryFront front = decode_front(file.bytes);
      key = std::move(front.key);
      if (!front.cut) break;
    }
  } else {
    const ReadFile file = read_noting(std::numeric_limits<std::size_t>::max());
    Summary summary = summarize(kind, file.bytes);
    if (summary.status == DecodeStatus::valid) key = std::move(summary.key);
  }
  return key && key->hex() == hex ? std::move(key) : std::nullopt;
}

std::optional<StoredEntry> decode(EntryKind kind, const std::string& hex,
                                  const detail::Bytes& bytes) {
  StoredEntry found;
  if (kind == EntryKind::binary) {
    DecodedEntry entry = decode_entry(bytes);
    if (entry.status != DecodeStatus::valid) return std::nullopt;
    found = {std::move(entry.key), bytes.part(entry.payload_offset, entry.payload_size)};
  } else {
    DecodedRecord record = decode_record(text_of(bytes));
    if (record.status != DecodeStatus::valid) return std::nullopt;
    found = {std::move(record.key), bytes_of(record_text(record.record))};
  }
  return found.key.hex() == hex ? std::optional(std::move(found)) : std::nullopt;
}

}  // namespace

std::optional<Key> read_key(DiskLevel& disk, EntryKind kind, const std::string& hex, bool* unread) {
  return key_of(kind, hex, unread, [&](std::size_t limit) { return disk.read(kind, hex, limit); });
}

std::optional<Key> read_key(DiskLevel& disk, const DiskLevel::Found& found, bool* unread) {
  return key_of(found.kind, found.hex, unread,
                [&](std::size_t limit) { return disk.read(found, limit); });
}

std::optional<StoredEntry> read_entry(DiskLevel& disk, EntryKind kind, const std::string& hex,
                                      bool use) {
  const ReadFile file = use ? disk.use(kind, hex) : disk.read(kind, hex);
  if (file.status != ReadFile::Status::read) return std::nullopt;
  return decode(kind, hex, file.bytes);
}

std::optional<StoredEntry> read_accepted(DiskLevel& disk, EntryKind kind, const std::string& hex,
                                         const std::function<bool(const Key&)>& accept) {
  const auto accepted = [&](const Key& key) { return key.hex() == hex && accept(key); };
  if (kind == EntryKind::record) {
    std::optional<StoredEntry> entry;
    disk.use_if(kind, hex, std::numeric_limits<std::size_t>::max(),
                [&](std::span<const std::byte> bytes) {
                  DecodedRecord record = decode_record(text_of(bytes));
                  if (record.status != DecodeStatus::valid || !accepted(record.key)) return false;
                  entry = {std::move(record.key), bytes_of(record_text(record.record))};
                  return true;
                });
    return entry;
  }
  Key begins_with;
  const ReadFile file = disk.use_if(kind, hex, kLongFront, [&](std::span<const std::byte> bytes) {
    EntryFront front = decode_front(bytes);
    if (!front.key || !accepted(*front.key)) return false;
    begins_with = *std::move(front.key);
    return true;
  });
  if (file.status != ReadFile::Status::read) return std::nullopt;
  auto entry = decode(kind, hex, file.bytes);
  return entry && same_key(kind, entry->key, begins_with) ? std::move(entry) : std::nullopt;
}

bool is_newer(DiskLevel& disk, EntryKind kind, const std::string& hex) {
  if (kind == EntryKind::binary &&
      decode_front(disk.read(kind, hex, kFront).bytes).version <= kEntryVersion)
    return false;
  return summarize(kind, disk.read(kind, hex).bytes).status == DecodeStatus::newer;
}

}  // namespace kiln::cache
