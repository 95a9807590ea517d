// The files of a cache directory: which file holds which entry, safely read, atomically replaced.
// Knows nothing of what is in them.
//
//   <directory>/v1/binaries/ab/ab12....kiln
//   <directory>/v1/records/cd/cd34....json
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/directory_guard.hpp"
#include "cache/file_system.hpp"
#include "cache/unique_fd.hpp"
#include "kiln/store.hpp"

namespace kiln::cache {

struct ReadFile {
  enum class Status {
    absent,
    read,
    damaged,  ///< something is there that is no readable file of ours; `failure` says what
    failed,   ///< the directory or the disk refused; `failure` says why
  };
  Status status = Status::absent;
  std::vector<std::byte> bytes;
  Failure failure;
};

/// Safe from any number of threads and processes. Reading creates nothing; the directory is made at
/// the first write. Nothing here throws, except for want of memory.
class DiskLevel {
 public:
  /// `directory` must be absolute and without a trailing slash; empty: nothing is ever found or
  /// written. Larger files than `kMaxFile` are neither read nor written.
  DiskLevel(std::filesystem::path directory, std::shared_ptr<FileSystem> fs);

  static constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 30;

  ReadFile read(EntryKind kind, const std::string& hex);
  /// Replaces the entry. A failure leaves the old one, or (of the last fsync) the new one.
  std::optional<Failure> publish(EntryKind kind, const std::string& hex,
                                 std::span<const std::byte> bytes);

  /// Why the directory may not be used. Nothing when it may, or when it does not exist yet.
  std::optional<Failure> refusal() const;

  struct Found {
    enum class What { entry, temporary, refused_directory };
    What what;
    EntryKind kind;
    std::string hex;  ///< of entries
    std::filesystem::path path;
    std::uint64_t bytes;
    bool regular;             ///< a plain file, not a link, FIFO, directory or device
    std::string why;          ///< of refused directories
    int directory;            ///< descriptor, valid during the visit
    const std::string& name;  ///< within `directory`
  };
  /// Visits every file that is named like one of Kiln's. Other files are passed over.
  void walk(const std::function<void(const Found&)>& visit);

  const std::filesystem::path& directory() const { return directory_; }
  std::filesystem::path path(EntryKind kind, const std::string& hex) const;

 private:
  using SharedFd = std::shared_ptr<const UniqueFd>;

  SharedFd kind_directory(EntryKind kind, bool create, std::optional<Failure>& failure);
  ReadFile read_at(int directory, const std::string& name, const std::string& path);
  void sweep(int directory);

  const std::filesystem::path directory_;
  const std::shared_ptr<FileSystem> fs_;
  std::shared_mutex mutex_;
  std::array<SharedFd, 2> kinds_;                              // open once they exist
  std::array<std::array<std::atomic<bool>, 256>, 2> swept_{};  // shards, each once per process
};

}  // namespace kiln::cache
