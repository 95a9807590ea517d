// The identity of a binary or a record: SHA-256 over typed, printable fields.
//
//   for (const kiln::StoreEntry& entry : kiln::Cache().explain("3fa9"))
//     std::cout << entry.key.hex() << '\n' << entry.key.explain();
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/version.hpp"

namespace kiln {

using Digest = std::array<std::byte, 32>;

/// SHA-256 of some bytes.
Digest sha256(std::span<const std::byte> bytes);
Digest sha256(std::string_view text);

/// Lower-case hexadecimal, 64 characters.
std::string to_hex(const Digest& digest);

/// One input of a key, in readable form.
struct KeyField {
  std::string name;
  std::string value;
  char type = 's';  ///< k kind, s text, i integer, l list of texts, d digest
  bool operator==(const KeyField&) const = default;
};

/// Everything that determines a binary or a record, and the digest over all of it. The first fields
/// (`portable_fields`) say what is wanted and are known anywhere; the others say what it was made
/// with (source, compiler), which a machine without sources or compilers cannot tell.
struct Key {
  Digest digest{};
  Digest portable{};  ///< over what is wanted alone; equal to `digest` if nothing else is there
  std::size_t portable_fields = 0;  ///< how many of `fields`, from the first, say what is wanted
  std::vector<KeyField> fields;

  std::string hex() const { return to_hex(digest); }
  /// The value of the first field of this name; empty if there is none.
  std::string value(std::string_view name) const;
  /// One `name = value` line per field, in the order they were added.
  std::string explain() const;
  bool operator==(const Key& other) const { return digest == other.digest; }
};

}  // namespace kiln
