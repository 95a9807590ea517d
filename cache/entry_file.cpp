#include "cache/entry_file.hpp"

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

std::optional<Key> read_key(DiskLevel& disk, EntryKind kind, const std::string& hex, bool* unread) {
  std::optional<Key> key;
  const auto note = [&](const ReadFile& file) {
    if (unread && file.status == ReadFile::Status::failed) *unread = true;
  };
  if (kind == EntryKind::binary) {
    for (const std::size_t limit : {kFront, kLongFront}) {
      const ReadFile file = disk.read(kind, hex, limit);
      note(file);
      if (file.status != ReadFile::Status::read) return std::nullopt;
      EntryFront front = decode_front(file.bytes);
      key = std::move(front.key);
      if (!front.cut) break;
    }
  } else {
    const ReadFile file = disk.read(kind, hex);
    note(file);
    Summary summary = summarize(kind, file.bytes);
    if (summary.status == DecodeStatus::valid) key = std::move(summary.key);
  }
  return key && key->hex() == hex ? std::move(key) : std::nullopt;
}

std::optional<StoredEntry> read_entry(DiskLevel& disk, EntryKind kind, const std::string& hex,
                                      bool use) {
  const ReadFile file = use ? disk.use(kind, hex) : disk.read(kind, hex);
  if (file.status != ReadFile::Status::read) return std::nullopt;
  StoredEntry found;
  if (kind == EntryKind::binary) {
    DecodedEntry entry = decode_entry(file.bytes);
    if (entry.status != DecodeStatus::valid) return std::nullopt;
    found = {std::move(entry.key), file.bytes.part(entry.payload_offset, entry.payload_size)};
  } else {
    DecodedRecord record = decode_record(text_of(file.bytes));
    if (record.status != DecodeStatus::valid) return std::nullopt;
    found = {std::move(record.key), bytes_of(record_text(record.record))};
  }
  return found.key.hex() == hex ? std::optional(std::move(found)) : std::nullopt;
}

bool is_newer(DiskLevel& disk, EntryKind kind, const std::string& hex) {
  if (kind == EntryKind::binary &&
      decode_front(disk.read(kind, hex, kFront).bytes).version <= kEntryVersion)
    return false;
  return summarize(kind, disk.read(kind, hex).bytes).status == DecodeStatus::newer;
}

}  // namespace kiln::cache
