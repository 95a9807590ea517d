// The bundle file: grammar in cache/FORMAT.md. A tree of hashes, so that opening reads a few KB
// however large it is, and a hit checks one bucket of the index and one entry.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cache/root.hpp"
#include "kiln/bundle.hpp"

namespace kiln::cache {

inline constexpr std::uint32_t kBundleVersion = 1;

struct BundleRow;
class PublicKey;

/// A mapped bundle. Immutable: hits read no state but the file's. The map lives as long as the
/// bundle or any payload from it. Replacing the file by rename is safe at any time; cutting it
/// short in place kills its readers with SIGBUS, as it does for any mapped file.
class Bundle final : public Root {
 public:
  /// Maps the file, checks its header, bucket tables and (if a key is given) signature. Anything
  /// but a regular file that only its owner may write to is refused; links to such a file are
  /// followed.
  static std::variant<std::unique_ptr<Bundle>, Failure> open(
      const std::filesystem::path& path, const std::filesystem::path& public_key = {});

  const std::filesystem::path& path() const override;
  std::optional<StoredEntry> find(EntryKind kind, const Key& key) override;
  std::vector<StoredEntry> find_portable(EntryKind kind, const Digest& portable,
                                         const std::set<std::string>& known = {}) override;
  bool refresh(EntryKind) override { return false; }
  void each_key(EntryKind kind, const std::function<bool(const Key&)>& visit) override;
  std::uint64_t count(EntryKind kind) override;

  /// Why a program that trusts `key` may not trust the bundle; nothing if it may.
  std::optional<Failure> distrust(const PublicKey& key) const;
  /// A Failure when the manifest is damaged.
  std::variant<BundleInfo, Failure> info() const;
  /// A Failure when a key is damaged.
  std::variant<std::vector<StoreEntry>, Failure> entries() const;
  /// Reads everything. A bundle without problems is whole to the last bit.
  VerifyReport verify() const;
  /// Every entry in the order of the file; ends at the first damaged one with a Failure.
  std::optional<Failure> each_entry(
      const std::function<void(EntryKind, StoredEntry entry)>& visit) const;

  ~Bundle() override;

 private:
  struct Impl;
  explicit Bundle(std::unique_ptr<Impl> impl);
  std::optional<StoredEntry> read(const BundleRow& row);
  std::unique_ptr<Impl> impl_;
};

/// Collects entries and writes them as one file.
class BundleWriter {
 public:
  /// Where key and kind are equal, the first entry stays. `payload` as StoredEntry's.
  void add(EntryKind kind, const Key& key, detail::Bytes payload);

  /// Temp file, fsync, rename. A link at `path` is replaced, not followed; a directory, device or
  /// FIFO is refused. Mode 0644, less the umask. Entries in the order of their digests, so the same
  /// entries give the same bytes. `private_key`: PEM file of an Ed25519 key; empty: unsigned.
  std::optional<Failure> write(const std::filesystem::path& path, const std::string& made_by,
                               const std::filesystem::path& private_key = {}) const;

 private:
  struct Item {
    Key key;
    detail::Bytes payload;
  };
  std::map<std::pair<Digest, EntryKind>, Item> items_;  // in the order of the file
};

}  // namespace kiln::cache
