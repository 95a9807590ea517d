// What an entry is once it is found, and the bytes of a binary's: grammar in cache/FORMAT.md. Pure
// functions, no files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/detail/bytes.hpp"
#include "kiln/key.hpp"

namespace kiln::cache {

inline constexpr std::uint32_t kEntryVersion = 2;        // written
inline constexpr std::uint32_t kOldestEntryVersion = 1;  // still read

/// The letters that a key's field may have as its type: see KeyField.
inline constexpr std::string_view kFieldTypes = "ksild";

/// A whole entry, wherever it was found: in memory, on disk or in a root.
struct StoredEntry {
  Key key;
  /// A binary's bytes, or a record's JSON text without the frame that its file puts around it.
  detail::Bytes payload;
};

enum class DecodeStatus {
  valid,
  damaged,  ///< not whole, or never was an entry
  older,    ///< whole, of a version no longer read
  newer,    ///< whole, of a version this Kiln does not know
};

struct DecodedEntry {
  DecodeStatus status = DecodeStatus::damaged;
  std::string why;  ///< when not valid
  Key key;          ///< when valid; of version 1 without what is portable
  std::size_t payload_offset = 0;
  std::size_t payload_size = 0;
};

std::vector<std::byte> encode_entry(const Key& key, std::span<const std::byte> payload);

/// Never throws on account of `file`, never reads past it.
DecodedEntry decode_entry(std::span<const std::byte> file);

/// The first bytes of an entry, read without the rest: only the whole entry can be verified.
struct EntryFront {
  std::uint32_t version = 0;  ///< 0: not an entry
  std::optional<Key> key;     ///< of the versions that are read, if all of it is there
  bool cut = false;           ///< longer than what was given
};
EntryFront decode_front(std::span<const std::byte> front);

}  // namespace kiln::cache
