// Reads the bytes of a bundle, wherever they come from, and trusts none of them: every access is
// within bounds, and nothing is handed out unless its hashes match.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cache/bundle_layout.hpp"
#include "cache/bundle_manifest.hpp"
#include "kiln/bundle.hpp"
#include "kiln/key.hpp"

namespace kiln::cache {

/// Immutable: safe from any number of threads. Keeps its own copy of the header and the bucket
/// tables, so that a file that is changed in place after it was opened gives misses. Time is linear
/// in what is read, and memory in one key, however hostile the file. Only bad_alloc is thrown.
class BundleReader {
 public:
  /// Checks the header and the bucket tables. `file` must outlive the reader. Returns a text that
  /// says why not, meant to follow the file's name.
  static std::variant<BundleReader, std::string> open(std::span<const std::byte> file);

  const BundleHeader& header() const { return header_; }
  /// The bytes that the header's signature signs.
  std::vector<std::byte> signed_bytes() const;

  std::optional<BundleRow> find(EntryKind kind, const Digest& digest) const;
  /// In the order of the file.
  std::vector<BundleRow> find_portable(EntryKind kind, const Digest& portable) const;
  /// In the order of the file; `visit` returns false to stop. Returns whether all rows were whole.
  bool each_row(const std::function<bool(const BundleRow&)>& visit) const;

  std::optional<Key> key(const BundleRow& row) const;
  std::optional<std::span<const std::byte>> payload(const BundleRow& row) const;
  /// As decode_manifest; nothing when it is damaged.
  std::optional<BundleInfo> manifest() const;

  struct Check {
    std::uint64_t entries = 0;          ///< read in full
    std::vector<std::string> problems;  ///< what is damaged
  };
  /// Reads everything: also what no look-up reads, such as the space between payloads.
  Check check() const;

 private:
  struct Range {
    std::uint64_t begin = 0, end = 0;
  };
  /// Checks rows in their order: no row may share bytes with an earlier one.
  struct Order {
    Digest digest{};
    std::uint32_t kind = 0;
    bool any = false;
    std::uint64_t key_end = 0, payload_end = 0;
    bool advance(const BundleRow& row);
  };

  BundleReader(std::span<const std::byte> file, const BundleHeader& header,
               const BundleParts& parts, std::vector<std::byte> tables)
      : file_(file), header_(header), parts_(parts), tables_(std::move(tables)) {}

  BundleBucket bucket(std::uint64_t table, std::size_t index) const;
  Range range(std::uint64_t table, std::size_t index) const;
  /// Nothing when the bucket's hash does not fit.
  std::optional<Range> row_bucket(std::size_t index) const;
  std::optional<Range> portable_bucket(std::size_t index) const;
  BundleRow row(std::uint64_t index) const;
  BundlePortable portable(std::uint64_t index) const;
  std::size_t bucket_of(std::uint64_t row) const;
  bool tables_make_sense() const;
  bool within(const BundleRow& row) const;
  bool zero(std::uint64_t begin, std::uint64_t end) const;
  void check_rows(Check& check, PartCounter& counter) const;
  void check_portables(Check& check) const;

  std::span<const std::byte> file_;
  BundleHeader header_;
  BundleParts parts_;
  std::vector<std::byte> tables_;
};

}  // namespace kiln::cache
