// The on-disk cache of binaries and records: its options, and what can be asked about it.
//
//   kiln::StoreOptions options;
//   options.directory = "/scratch/me/kiln";  // default: see below
//
// No failure of the store ever fails a launch: what cannot be kept on disk is kept in memory, as
// far as StoreOptions::memory_bytes says.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kiln/key.hpp"
#include "kiln/log.hpp"

namespace kiln {

/// Which users may write to a store.
enum class StoreSharing {
  user,  ///< the effective user of this process alone
  group  ///< also members of the folder's group, whichever user made it, if this process is one
};

/// Where and whether compiled binaries and tuning records are kept between processes.
struct StoreOptions {
  /// Empty: $KILN_CACHE_DIR, else $XDG_CACHE_HOME/kiln, else ~/.cache/kiln, else memory only.
  /// Created with mode 0700 at the first write. It must belong to the process's effective user, be
  /// writable by no other user, and not be a symbolic link (its parents may be). See `sharing`.
  std::filesystem::path directory{};
  bool disk = true;  ///< false: no writable store; roots are still read
  /// Read-only stores, asked in this order after the writable one: bundles and cache directories.
  /// Empty: $KILN_ROOTS, separated by colons. They may belong to anyone, but must not be writable
  /// by group or others.
  std::vector<std::filesystem::path> roots{};
  /// PEM file of an Ed25519 public key. If set, a bundle that it does not verify is not used, and
  /// directories are no roots. Empty: $KILN_BUNDLE_KEY; without that, signatures are not required.
  std::filesystem::path bundle_key{};
  /// Bound of the writable store on disk; the least recently used entries go first, records after
  /// all binaries. 0: $KILN_CACHE_SIZE (bytes, or with K, M, G, T), else 5 GiB.
  std::uint64_t max_bytes = 0;
  /// Bound of the number of entries on disk, kept in the same way: a file each. 0:
  /// $KILN_CACHE_FILES, else 100,000.
  std::uint64_t max_files = 0;
  /// `group`: the folder may belong to any user, if its group is one of this process's; what Kiln
  /// creates has mode 2770 (folders) or 0660, whatever the umask, and the folder's group. Each
  /// member of the group can then put code there that this process runs. Folders that others may
  /// write to, and links, are refused as ever. Empty: $KILN_CACHE_SHARED (`user` or `group`), else
  /// `user`.
  std::optional<StoreSharing> sharing{};
  /// False: when a kernel's search of one rank is complete, the binaries that it compiled are
  /// removed from disk, except the winner's, the default's and the untuned config's. The times stay
  /// on record. Another process that tunes another problem of the kernel, or a larger space, then
  /// compiles them again.
  bool keep_losers = true;
  /// How long, in seconds, another process that is making an entry may give no sign of life before
  /// others stop waiting for it. 0: never wait.
  double lock_deadline = 5;
  /// Bound of the binaries kept in memory, the least recently used going first; 0: none are. The
  /// same bound, but at least 8 MiB, holds for the records that could not be written: they are kept
  /// with 0, too.
  std::size_t memory_bytes = std::size_t{256} << 20;
  LogSink log{};  ///< one warning per store when the disk cannot be used; damage at debug level
};

enum class EntryKind { binary, record };

/// What `kiln cache stats` shows: the disk now, and this process's use of it.
struct StoreStatistics {
  std::filesystem::path directory;  ///< empty when none could be determined
  bool memory_only = false;         ///< what is put now does not outlive the process
  std::string reason;               ///< why memory_only, and what to do

  std::uint64_t binaries = 0;   ///< entries on disk
  std::uint64_t records = 0;    ///< entries on disk
  std::uint64_t bytes = 0;      ///< of both
  std::uint64_t max_bytes = 0;  ///< the limit for both
  std::uint64_t files = 0;      ///< of both
  std::uint64_t max_files = 0;  ///< the limit for both

  std::uint64_t memory_hits = 0;    ///< looked up and found in memory
  std::uint64_t disk_hits = 0;      ///< looked up and found on disk
  std::uint64_t misses = 0;         ///< not found by the whole key (root_hits may have it)
  std::uint64_t damaged = 0;        ///< misses because an entry was there but not whole
  std::uint64_t repaired = 0;       ///< damaged entries replaced by whole ones
  std::uint64_t writes = 0;         ///< entries published
  std::uint64_t failed_writes = 0;  ///< entries that stayed in memory only, if they fit there
  std::uint64_t root_hits = 0;      ///< looked up and found in a read-only root
  std::uint64_t waits = 0;          ///< times another process's work was waited for
  std::uint64_t evicted = 0;        ///< entries removed to keep the limits

  struct Root {
    std::filesystem::path path;
    std::uint64_t binaries = 0, records = 0;
    std::string problem;  ///< why it is not used; empty: it is
  };
  std::vector<Root> roots;
};

/// One entry on disk.
struct StoreEntry {
  EntryKind kind = EntryKind::binary;
  Key key;
  std::filesystem::path path;
  std::uint64_t bytes = 0;                       ///< size of the file
  std::chrono::system_clock::time_point used{};  ///< last, to the hour
};

/// What `kiln cache trim` did.
struct TrimReport {
  std::uint64_t entries = 0;     ///< removed
  std::uint64_t bytes = 0;       ///< removed
  std::uint64_t abandoned = 0;   ///< temporary and lock files of processes that are gone
  std::uint64_t left = 0;        ///< bytes of what stays
  std::uint64_t left_files = 0;  ///< entries that stay
};

/// What `kiln cache verify` found. Nothing is changed by looking.
struct VerifyReport {
  struct Problem {
    std::filesystem::path path;
    std::string reason;
  };

  std::uint64_t checked = 0;      ///< entries read in full
  std::uint64_t newer = 0;        ///< of them, written by a newer Kiln: whole, and left alone
  std::uint64_t unfinished = 0;   ///< temporary files, of writers at work or killed
  std::vector<Problem> problems;  ///< damaged: misses when looked up; the next write repairs them
  /// Files and directories that may not be read or trusted because of their permissions or owner,
  /// or that the disk failed to read: their content is unknown.
  std::vector<Problem> unreadable;

  bool ok() const { return problems.empty() && unreadable.empty(); }
};

}  // namespace kiln
