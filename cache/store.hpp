// The store: binaries and records by key, in memory and on disk.
//
//   Store store(options);
//   if (auto bytes = store.find(key)) return load(*bytes);
//   store.put(key, compile());
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cache/disk_level.hpp"
#include "cache/evictor.hpp"
#include "cache/key_index.hpp"
#include "cache/location.hpp"
#include "cache/memory_level.hpp"
#include "cache/root.hpp"
#include "cache/roots.hpp"
#include "cache/work_lock.hpp"
#include "kiln/detail/bytes.hpp"
#include "kiln/store.hpp"

namespace kiln::cache {

/// Safe from any number of threads, and of processes on one directory. Entries are read and written
/// without a lock; threads that look up portable entries take turns to list directories. Look-ups
/// and puts throw nothing but std::bad_alloc: what is wrong with a disk becomes a miss or a value
/// kept in memory, is counted, and is said once to the log sink.
class Store {
 public:
  /// Touches no file. `fs`: for tests; null: the system's.
  explicit Store(StoreOptions options = {}, std::shared_ptr<FileSystem> fs = nullptr);

  /// The bytes put under exactly this key (digest and fields), from memory, else from disk, else
  /// from a root.
  std::optional<detail::Bytes> find(const Key& key);
  /// Keeps `binary` in memory and on disk, replacing what was there. A whole entry of a newer
  /// format is left alone.
  void put(const Key& key, detail::Bytes binary);

  /// Takes the right to make the entry `key` (see WorkLock), or waits for another process that is
  /// making it. After `ready` look again; after `held` of a record, too, for it may have been
  /// replaced just before. Without a writable directory: `unusable`, at once.
  /// `give_up`, asked now and then while it waits, ends that with `given_up`.
  WorkLock::Outcome lock(EntryKind kind, const Key& key, WorkLock& lock,
                         const std::function<bool()>& give_up = {});

  enum class Where {
    anywhere,  ///< memory, then the writable store, then the roots
    roots
  };
  /// The first entry for what `portable` says is wanted whose whole key is accepted, and that
  /// `take` (empty: all) does not refuse. For use where the rest of the key cannot be known. The
  /// payload of a record is its JSON text. Sees what was there when it was called, and looks at a
  /// directory twice at most, however much is written meanwhile.
  std::optional<StoredEntry> find_portable(
      EntryKind kind, const Digest& portable, Where where,
      const std::function<bool(const Key&)>& accept,
      const std::function<bool(const StoredEntry&)>& take = {});
  /// The whole keys of what `portable` says is wanted. Counts as no look-up.
  std::vector<Key> portable_keys(EntryKind kind, const Digest& portable, Where where);
  /// The key of a kind, here or in the roots, that `accept` admits and that differs from `wanted`
  /// in the fewest portable fields. For error messages: it reads every key, up to ten thousand.
  std::optional<Key> closest(EntryKind kind, const Key& wanted,
                             const std::function<bool(const Key&)>& accept);
  bool has_roots() const noexcept;
  /// The same number wherever this writable store is seen from; another store has almost certainly
  /// another number. Nothing without a writable directory. Creates a file.
  std::optional<std::uint64_t> identity();
  /// Why roots that were named are not used; empty if all are.
  std::vector<std::string> root_problems();

  /// As find and put. A record is always read from disk (else from a root), so that other
  /// processes' later ones are seen, unless the last put of it could not be written. What `accept`
  /// (empty: nothing) refuses is passed over for what lies in the next place, and counts as no hit.
  /// Non-finite numbers read back as null. A record that is_too_deep() (cache/record.hpp) is not
  /// kept.
  std::optional<nlohmann::json> find_record(
      const Key& key, const std::function<bool(const nlohmann::json&)>& accept = {});
  void put_record(const Key& key, const nlohmann::json& record);
  /// Visits every whole record, one for each key, in no particular order. Records that could not be
  /// written and records of the roots are included.
  void each_record(const std::function<void(const Key&, const nlohmann::json&)>& visit);

  /// The whole entries on disk whose digest begins with these hexadecimal digits.
  /// Throws UserError for anything else than hexadecimal digits.
  std::vector<StoreEntry> explain(std::string_view hex_prefix);
  std::vector<StoreEntry> list() { return explain(""); }
  StoreStatistics stats();
  /// Why nothing is kept on disk; empty: it can be. Tries to write: makes the directory, and a file
  /// that it removes.
  std::string obstacle();
  /// Reads every entry in full; changes nothing, and does not count as look-ups.
  VerifyReport verify();
  /// See kiln::Cache::trim.
  TrimReport trim(std::uint64_t max_bytes,
                  std::uint64_t max_files = std::numeric_limits<std::uint64_t>::max());
  /// Takes an entry off the disk; memory keeps it. For what can be made again and will hardly be
  /// asked for.
  void drop(EntryKind kind, const Digest& digest);
  /// Removes every entry, damaged and newer ones too, and every temporary file; no link, FIFO,
  /// directory or file of another name. Returns how many files went. Throws EnvironmentError when
  /// the directory may not be used or a file could not be removed (having removed the others).
  std::size_t clear();

 private:
  struct Counters {
    std::atomic<std::uint64_t> memory_hits{0}, disk_hits{0}, misses{0}, damaged{0}, repaired{0},
        writes{0}, failed_writes{0}, root_hits{0}, waits{0};
  };
  /// What a look-up on disk came to.
  struct Judgement {
    enum class Finding { whole, absent, failed, damaged, older, newer } finding;
    Failure failure;  ///< what is wrong and what to do, when there is something wrong
  };

  template <class Decoded>
  static Judgement judge(const ReadFile& file, const Decoded& decoded, EntryKind kind,
                         const Key& key);
  /// Notes what is wrong with what a look-up found on disk. True: the entry is whole.
  bool note(const Judgement& judgement);
  std::optional<StoredEntry> find_in_roots(
      EntryKind kind, const Key& key, const std::function<bool(const StoredEntry&)>& take = {});
  std::optional<StoredEntry> find_portable_here(
      EntryKind kind, const Digest& portable, const std::function<bool(const Key&)>& accept,
      const std::function<bool(const StoredEntry&)>& take);
  bool publish(const Key& key, EntryKind kind, std::span<const std::byte> file);
  void write_failed(const Failure& failure);
  void log(LogLevel level, const std::string& text) const;
  void warn_once(const Failure& failure);

  Store(StoreOptions options, std::shared_ptr<FileSystem> fs, Location location,
        StoreSharing sharing);

  static StoreLimits limits(const StoreOptions& options);
  static StoreSharing sharing(const StoreOptions& options);
  /// Why nothing is kept on disk, as far as that is known without trying.
  std::string known_obstacle();

  const StoreOptions options_;
  const std::string no_directory_;  ///< why no directory could be determined
  DiskLevel disk_;
  Evictor evictor_;
  KeyIndex index_;
  Roots roots_;
  MemoryLevel binaries_;
  MemoryLevel unwritten_;  ///< records that the disk would not take, as payloads
  Counters counters_;
  std::atomic<bool> warned_{false};
  std::mutex failure_mutex_;
  std::string write_failure_;  ///< of the last put, if it failed
};

}  // namespace kiln::cache
