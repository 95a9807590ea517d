// The on-disk cache of binaries and records: its options, and what can be asked about it.
//
//   kiln::StoreOptions options;
//   options.directory = "/scratch/me/kiln";  // default: see below
//
// No failure of the store ever fails a launch: what cannot be kept on disk is kept in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kiln/key.hpp"
#include "kiln/log.hpp"

namespace kiln {

/// Where and whether compiled binaries and tuning records are kept between processes.
struct StoreOptions {
  /// Empty: $KILN_CACHE_DIR, else $XDG_CACHE_HOME/kiln, else ~/.cache/kiln, else memory only.
  /// Created with mode 0700 at the first write. It must belong to the process's effective user, be
  /// writable by nobody else, and not be a symbolic link (its parents may be).
  std::filesystem::path directory{};
  bool disk = true;  ///< false: memory only, nothing is read or written
  std::size_t memory_bytes = std::size_t{256} << 20;  ///< bound of the memory level; 0: none
  LogSink log{};  ///< one warning per store when the disk cannot be used; damage at debug level
};

enum class EntryKind { binary, record };

/// What `kiln cache stats` shows: the disk now, and this process's use of it.
struct StoreStatistics {
  std::filesystem::path directory;  ///< empty when none could be determined
  bool memory_only = false;         ///< what is put now does not outlive the process
  std::string reason;               ///< why memory_only, and what to do

  std::uint64_t binaries = 0;  ///< entries on disk
  std::uint64_t records = 0;   ///< entries on disk
  std::uint64_t bytes = 0;     ///< of both

  std::uint64_t memory_hits = 0;    ///< looked up and found in memory
  std::uint64_t disk_hits = 0;      ///< looked up and found on disk
  std::uint64_t misses = 0;         ///< looked up and not found, whatever the cause
  std::uint64_t damaged = 0;        ///< misses because an entry was there but not whole
  std::uint64_t repaired = 0;       ///< damaged entries replaced by whole ones
  std::uint64_t writes = 0;         ///< entries published
  std::uint64_t failed_writes = 0;  ///< entries that stayed in memory only
};

/// One entry on disk.
struct StoreEntry {
  EntryKind kind = EntryKind::binary;
  Key key;
  std::filesystem::path path;
  std::uint64_t bytes = 0;  ///< size of the file
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
  std::vector<Problem> problems;  ///< misses when looked up; the next write repairs them

  bool ok() const { return problems.empty(); }
};

}  // namespace kiln
