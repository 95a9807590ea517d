// What lies where in a bundle: the fixed-size parts, and the key's encoding. Grammar in
// cache/FORMAT.md. Pure functions, no files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/signature.hpp"
#include "kiln/key.hpp"

namespace kiln::cache {

inline constexpr std::string_view kBundleMagic("\x89KBDL\r\n\x1a", 8);
inline constexpr std::size_t kBundleBuckets = 256;   // by a digest's first byte
inline constexpr std::size_t kBundleAlignment = 64;  // of payloads
inline constexpr std::uint64_t kMaxBundleManifest = 4 << 20;
inline constexpr std::uint64_t kMaxBundleKey = 1 << 20;  // one key's fields

/// The first bytes of the file.
struct BundleHeader {
  static constexpr std::size_t kSize = 256;
  static constexpr std::size_t kSigned = 160;  ///< leading bytes that the signature covers

  std::uint32_t version = 0;
  std::uint64_t size = 0;  ///< of the file
  std::uint64_t binaries = 0, records = 0;
  std::uint64_t manifest_size = 0, keys_size = 0;
  Digest tables{};    ///< over both bucket tables
  Digest manifest{};  ///< over the manifest
  Digest key_id{};    ///< of the signer's key; zero: not signed
  Signature signature{};

  std::uint64_t rows() const { return binaries + records; }
  bool is_signed() const { return key_id != Digest{} || signature != Signature{}; }
};

/// Rows, or portables, that begin with one byte: from the previous bucket's `end` up to this one.
struct BundleBucket {
  static constexpr std::size_t kSize = 40;
  std::uint64_t end = 0;
  Digest sha256{};  ///< over its rows, or portables
};

/// One entry. Rows are in the order of digests.
struct BundleRow {
  static constexpr std::size_t kSize = 160;
  Digest digest{}, portable{}, key_sha256{}, payload_sha256{};
  std::uint64_t key_offset = 0, payload_offset = 0, payload_size = 0;
  std::uint32_t key_size = 0, kind = 0;  ///< kind: as EntryKind, 0 or 1
};

/// Finds rows by Key::portable. Sorted by portable digest, then by row.
struct BundlePortable {
  static constexpr std::size_t kSize = 40;
  Digest portable{};
  std::uint64_t row = 0;
};

/// Where the parts begin. Payloads follow the keys.
struct BundleParts {
  static constexpr std::uint64_t kRowBuckets = BundleHeader::kSize;
  static constexpr std::uint64_t kPortableBuckets =
      kRowBuckets + kBundleBuckets * BundleBucket::kSize;
  static constexpr std::uint64_t kRows = kPortableBuckets + kBundleBuckets * BundleBucket::kSize;

  std::uint64_t portables = 0, manifest = 0, keys = 0, keys_end = 0;

  /// Nothing when the header's numbers do not fit into header.size.
  static std::optional<BundleParts> of(const BundleHeader& header);
};

/// The next multiple of kBundleAlignment; `offset` must be a file's.
constexpr std::uint64_t aligned(std::uint64_t offset) {
  return (offset + kBundleAlignment - 1) / kBundleAlignment * kBundleAlignment;
}

/// The bytes of the header, with the checksum over them.
std::vector<std::byte> encode(const BundleHeader& header);
void append(std::vector<std::byte>& out, const BundleBucket& bucket);
void append(std::vector<std::byte>& out, const BundleRow& row);
void append(std::vector<std::byte>& out, const BundlePortable& portable);
/// The fields; the digests are in the row.
std::vector<std::byte> encode_fields(const Key& key);

/// Why `file` does not begin like a bundle that this Kiln reads; else `header` is filled in. The
/// numbers in it are whole, but not yet known to make sense.
std::optional<std::string> decode(std::span<const std::byte> file, BundleHeader& header);
/// Exactly kSize bytes.
BundleBucket decode_bucket(std::span<const std::byte, BundleBucket::kSize> bytes);
BundleRow decode_row(std::span<const std::byte, BundleRow::kSize> bytes);
BundlePortable decode_portable(std::span<const std::byte, BundlePortable::kSize> bytes);
/// Fills in portable_fields and fields. False: not what encode_fields makes.
bool decode_fields(std::span<const std::byte> bytes, Key& key);

}  // namespace kiln::cache
