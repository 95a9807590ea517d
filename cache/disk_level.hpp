// The files of a cache directory: which file holds which entry, safely read, atomically replaced,
// removed only if it is the one that was meant. Knows nothing of what is in them.
//
//   <directory>/v1/binaries/ab/ab12....kiln
//   <directory>/v1/records/cd/cd34....json
//   <directory>/v1/locks/...                  see work_lock.hpp
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include <sys/stat.h>

#include "cache/directory_guard.hpp"
#include "cache/file_system.hpp"
#include "cache/unique_fd.hpp"
#include "kiln/detail/bytes.hpp"
#include "kiln/store.hpp"

namespace kiln::cache {

inline constexpr std::int64_t kNanoseconds = 1'000'000'000;  ///< in a second

/// Tells one state of a file from another of the same name.
struct Stamp {
  dev_t device = 0;
  ino_t inode = 0;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< since the epoch, by the file server's clock

  static Stamp of(const struct stat& status);
  bool operator==(const Stamp&) const = default;
};

struct ReadFile {
  enum class Status {
    absent,
    read,
    damaged,  ///< something is there that is not a readable file of ours; `failure` says what
    failed,   ///< the directory or the disk refused; `failure` says why
  };
  Status status = Status::absent;
  detail::Bytes bytes;  ///< when read: all of the file, or as much from its front as was asked for
  Stamp stamp;          ///< when read
  Failure failure;
  bool forbidden = false;  ///< damaged only in that permissions or an owner forbid its use
};

/// Safe from any number of threads and processes. Reading creates nothing; the directory is made at
/// the first write. Nothing here throws, except when memory runs out.
class DiskLevel {
 public:
  /// `directory` must be absolute and without a trailing slash; empty: nothing is ever found or
  /// written. Larger files than `kMaxFile` are neither read nor written. With Owner::anyone it is
  /// for reading only.
  DiskLevel(std::filesystem::path directory, std::shared_ptr<FileSystem> fs,
            Owner owner = Owner::self);

  static constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 30;
  static constexpr std::int64_t kUseSeconds = 3600;        ///< to which use of an entry is kept
  static constexpr std::int64_t kAbandonedSeconds = 3600;  ///< age of files that nobody writes now

  /// At most `limit` bytes from the front.
  ReadFile read(EntryKind kind, const std::string& hex,
                std::size_t limit = std::numeric_limits<std::size_t>::max());
  /// As read(), of the whole file. Counts as use: a time stamp that is an hour off is set to now,
  /// if that is permitted.
  ReadFile use(EntryKind kind, const std::string& hex);
  /// As use(), of a file whose front is `wanted`: else it counts as absent, and the rest of it is
  /// not read. The front is `front` bytes, or all if that is less.
  using Wanted = std::function<bool(std::span<const std::byte> bytes)>;
  ReadFile use_if(EntryKind kind, const std::string& hex, std::size_t front, const Wanted& wanted);
  /// The stamp of a regular file; nothing if there is none.
  std::optional<Stamp> stamp(EntryKind kind, const std::string& hex);
  /// Replaces the entry. A failure leaves the old one, or (of the last fsync) the new one.
  std::optional<Failure> publish(EntryKind kind, const std::string& hex,
                                 std::span<const std::byte> bytes);

  /// Why nothing can be written. Tries to: makes the directory, and writes a file that it removes.
  std::optional<Failure> try_to_write();
  /// Why the directory may not be used. Nothing when it may, or when it does not exist yet.
  std::optional<Failure> refusal() const;

  struct Found {
    enum class What { entry, temporary, refused_directory };
    What what;
    EntryKind kind;
    std::string hex;  ///< of entries
    std::filesystem::path path;
    Stamp stamp;
    bool regular;             ///< a plain file, not a link, FIFO, directory or device
    std::string why;          ///< of refused directories
    int directory;            ///< descriptor, valid during the visit
    const std::string& name;  ///< within `directory`
  };
  /// Visits every file that is named like one of Kiln's. Other files are passed over.
  void walk(const std::function<void(const Found&)>& visit);

  static constexpr unsigned kShards = 256;
  /// As walk, of one kind and one of the kShards parts that entries spread over evenly. The stamp
  /// of the part's directory (nothing: it is not there) was taken before its names were read.
  std::optional<Stamp> walk_shard(EntryKind kind, unsigned number,
                                  const std::function<void(const Found&)>& visit);
  /// As read(), of a visited file, during the visit.
  ReadFile read(const Found& found, std::size_t limit = std::numeric_limits<std::size_t>::max());
  /// That stamp alone.
  std::optional<Stamp> shard_stamp(EntryKind kind, unsigned number);

  /// Removes a file of the visited directory if it still is the one with this stamp, at whatever
  /// moment others replace it. False: it is gone, another one, or cannot be removed.
  bool remove(int directory, const std::string& name, const Stamp& judged);
  bool remove(EntryKind kind, const std::string& hex, const Stamp& judged);

  using SharedFd = std::shared_ptr<const UniqueFd>;
  /// The directory of locks; null if it is not there or not to be used.
  SharedFd locks(bool create);
  /// Now by the clock that stamps files here, which need not be this machine's: it stamps a file
  /// that is made in the directory of locks and removed again. Nothing where none can be made:
  /// without that directory (`create` makes it), without permission, and with Owner::anyone.
  std::optional<std::int64_t> now_ns(bool create);

  const std::filesystem::path& directory() const { return directory_; }
  Owner owner() const { return owner_; }
  std::filesystem::path path(EntryKind kind, const std::string& hex) const;
  const std::shared_ptr<FileSystem>& file_system() const { return fs_; }

 private:
  std::optional<Failure> try_to_publish(EntryKind kind, const std::string& hex,
                                        std::span<const std::byte> bytes);
  static constexpr std::size_t kLocks = 2;  // beside the kinds of entries

  SharedFd inner_directory(std::size_t index, bool create, std::optional<Failure>& failure);
  GuardedDirectory shard(EntryKind kind, const std::string& name, std::string& path);
  /// What of a file is read, and whether that counts as use.
  struct Part {
    std::size_t limit = std::numeric_limits<std::size_t>::max();
    bool use = false;
    const Wanted* wanted = nullptr;  ///< null: it is
    std::size_t front = 0;           ///< what it is asked about
  };
  ReadFile read_file(EntryKind kind, const std::string& hex, const Part& part);
  ReadFile read_at(int directory, const std::string& name, const std::string& path,
                   const Part& part);
  void sweep(int directory);

  const std::filesystem::path directory_;
  const std::shared_ptr<FileSystem> fs_;
  const Owner owner_;
  std::shared_mutex mutex_;
  std::array<SharedFd, 3> inner_;                                  // open once they exist
  std::array<std::array<std::atomic<bool>, kShards>, 2> swept_{};  // each once per process
};

}  // namespace kiln::cache
