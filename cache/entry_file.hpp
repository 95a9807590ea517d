// Entries of either kind as they lie in a cache directory: what the writable store and a directory
// root have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cache/disk_level.hpp"
#include "cache/entry.hpp"
#include "cache/root.hpp"
#include "kiln/key.hpp"
#include "kiln/store.hpp"

namespace kiln::cache {

/// Status, reason and key of a file of either kind, for callers that need no payload.
struct Summary {
  DecodeStatus status = DecodeStatus::damaged;
  std::string why;
  Key key;
};
Summary summarize(EntryKind kind, std::span<const std::byte> file);

/// Whether an entry that holds `found` answers a question for `wanted`. Records replace what is not
/// UTF-8 in a key's fields, and version 1 does not tell what is portable; the digest still tells
/// such keys apart.
bool same_key(EntryKind kind, const Key& found, const Key& wanted);

/// The key of a file, reading no more of a binary than its front: it is not verified until the
/// whole is read. Nothing for what is damaged or of another version, or under another name, and
/// where it cannot be read now: then `unread` is set.
std::optional<Key> read_key(DiskLevel& disk, EntryKind kind, const std::string& hex,
                            bool* unread = nullptr);
/// The same of a visited file, during the visit.
std::optional<Key> read_key(DiskLevel& disk, const DiskLevel::Found& found, bool* unread = nullptr);

/// The whole entry, if it is whole and lies under its own name. `use`: see DiskLevel::use.
std::optional<StoredEntry> read_entry(DiskLevel& disk, EntryKind kind, const std::string& hex,
                                      bool use);

/// The whole entry, whose file is opened once, and read to the end if `accept` admits the key that
/// it begins with. That counts as use. A record's key is asked about once the record is known to be
/// whole.
std::optional<StoredEntry> read_accepted(DiskLevel& disk, EntryKind kind, const std::string& hex,
                                         const std::function<bool(const Key&)>& accept);

/// Whether it is whole and of a newer format, which only a newer Kiln may remove.
bool is_newer(DiskLevel& disk, EntryKind kind, const std::string& hex);

std::string_view text_of(std::span<const std::byte> bytes);
detail::Bytes bytes_of(std::string_view text);

}  // namespace kiln::cache
