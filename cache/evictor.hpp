// Keeps a cache directory below its limits: the least recently used entries go.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>

#include "cache/disk_level.hpp"
#include "kiln/store.hpp"

namespace kiln::cache {

/// How much a directory may hold.
struct StoreLimits {
  std::uint64_t bytes;
  std::uint64_t files = std::numeric_limits<std::uint64_t>::max();  ///< entries
};

/// Safe from any number of threads, and of processes on one directory. Use is told by an entry's
/// own time stamp (DiskLevel::use). Binaries go before records; entries of a newer format stay.
class Evictor {
 public:
  /// `disk` must outlive it.
  Evictor(DiskLevel& disk, const StoreLimits& limit) : disk_(disk), limit_(limit) {}

  /// Call this for every entry written. Now and then it looks how much the directory holds. If that
  /// is too much, it evicts down to nine tenths of the limits, unless another process is doing so.
  void wrote(std::uint64_t bytes);
  /// Goes down to `target`, and sweeps abandoned files. `problem`: why a part of the
  /// directory could not be looked at, if one could not.
  TrimReport trim(const StoreLimits& target, std::string& problem);

  const StoreLimits& limit() const { return limit_; }
  std::uint64_t evicted() const { return evicted_; }

 private:
  bool is_too_full();
  std::int64_t now_ns();
  std::uint64_t sweep_locks(std::int64_t now_ns);
  TrimReport reduce(const StoreLimits& limit, const StoreLimits& target, std::int64_t now_ns,
                    std::string* problem = nullptr);

  DiskLevel& disk_;
  const StoreLimits limit_;
  std::atomic<std::uint64_t> evicted_{0};
  std::atomic<std::uint64_t> unchecked_{0};        // bytes written since the last look
  std::atomic<std::uint64_t> unchecked_files_{0};  // likewise
  std::atomic<bool> looked_{false};                // once at least
  std::atomic<bool> busy_{false};
};

}  // namespace kiln::cache
