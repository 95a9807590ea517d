// Finds entries of a cache directory by what is wanted: file names by Key::portable, since files
// are named by the whole key.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/disk_level.hpp"
#include "kiln/key.hpp"
#include "kiln/store.hpp"

namespace kiln::cache {

/// Safe from any number of threads. Its answers are hints: entries come, go and are damaged.
class KeyIndex {
 public:
  /// `disk` must outlive it.
  explicit KeyIndex(DiskLevel& disk) : disk_(disk) {}

  /// Names of the entries of a kind with this Key::portable, in order. The first call reads the
  /// front of every entry.
  std::vector<std::string> find(EntryKind kind, const Digest& portable);
  /// Reads the fronts of the entries that have come since, and creates nothing but a file that it
  /// removes again (DiskLevel::now_ns). True if anything is different now.
  bool refresh(EntryKind kind);

 private:
  using Clock = std::chrono::steady_clock;
  struct Shard {
    std::int64_t settled_ns = 0;  ///< the directory's stamp, if nothing can change under it now
    std::int64_t listed_ns = 0;   ///< its stamp when it was last listed
    Clock::time_point listed_at;  ///< when it was first listed with that stamp
    std::map<std::string, Digest> portable;  ///< by hex
  };
  struct Hash {
    std::size_t operator()(const Digest& digest) const noexcept;
  };
  struct Kind {
    bool built = false;
    std::array<Shard, DiskLevel::kShards> shards;
    std::unordered_map<Digest, std::vector<std::string>, Hash> names;
  };

  /// A shard that may have changed, and whether it is there.
  struct Due {
    unsigned number;
    bool is_there;
  };
  /// When a listing began: by this machine's clock, and by the file server's, if that is known.
  struct Moment {
    Clock::time_point here;
    std::optional<std::int64_t> server_ns;
  };

  bool refresh(Kind& index, EntryKind kind);
  bool list(Shard& shard, EntryKind kind, const Due& due, const Moment& now);

  DiskLevel& disk_;
  std::mutex mutex_;
  std::array<Kind, 2> kinds_;
};

}  // namespace kiln::cache
