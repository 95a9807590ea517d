// Keeps a cache directory below its size: the least recently used entries go.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "cache/disk_level.hpp"
#include "kiln/store.hpp"

namespace kiln::cache {

/// Safe from any number of threads, and of processes on one directory. Use is told by an entry's
/// own time stamp (DiskLevel::use). Binaries go before records; entries of a newer format stay.
class Evictor {
 public:
  /// `disk` must outlive it; `limit` in bytes.
  Evictor(DiskLevel& disk, std::uint64_t limit) : disk_(disk), limit_(limit) {}

  /// Call this for every entry written. Now and then it looks how large the directory is. If that
  /// is too large, it evicts down to nine tenths of the limit, unless another process is doing so.
  void wrote(std::uint64_t bytes);
  /// Goes down to `target` bytes, and sweeps abandoned files. `problem`: why a part of the
  /// directory could not be looked at, if one could not.
  TrimReport trim(std::uint64_t target, std::string& problem);

  std::uint64_t limit() const { return limit_; }
  std::uint64_t evicted() const { return evicted_; }

 private:
  bool is_too_large();
  std::int64_t now_ns();
  std::uint64_t sweep_locks(std::int64_t now_ns);
  TrimReport reduce(std::uint64_t limit, std::uint64_t target, std::int64_t now_ns,
                    std::string* problem = nullptr);

  DiskLevel& disk_;
  const std::uint64_t limit_;
  std::atomic<std::uint64_t> evicted_{0};
  std::atomic<std::uint64_t> unchecked_{0};  // bytes written since the last look
  std::atomic<bool> looked_{false};          // once at least
  std::atomic<bool> busy_{false};
};

}  // namespace kiln::cache
