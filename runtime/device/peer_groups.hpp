// Which addresses of a device are symmetric memory: so that what a program passes to its kernels
// can be made again in another process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace kiln::runtime {

/// What takes it to make a rank's symmetric memory.
struct PeerShape {
  int rank = 0, ranks = 1;
  unsigned flags = 0;
  std::uint64_t bytes = 0;  ///< of data on each rank
  bool operator==(const PeerShape&) const = default;
};

/// A rank's symmetric memory as its kernels see it.
struct PeerGroup {
  PeerShape shape;
  const void* peers = nullptr;    ///< its view of all ranks
  std::vector<const void*> data;  ///< by rank
};

/// What an address means in a group, whatever process it is made in.
struct PeerPlace {
  static constexpr int kView = -1;

  int rank = kView;          ///< whose data it is in, or the view
  std::uint64_t offset = 0;  ///< bytes, in the data
};

/// Thread-safe.
class PeerGroups {
 public:
  struct Found {
    std::uint64_t group = 0;  ///< its number
    PeerShape shape;
    PeerPlace place;
  };

  /// Returns its number. It is known until remove().
  std::uint64_t add(PeerGroup group);
  void remove(std::uint64_t number) noexcept;
  /// The group of that rank which the address is in; nothing: it is in none.
  std::optional<Found> find(const void* address, int rank) const;

 private:
  mutable std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, PeerGroup> groups_;
};

}  // namespace kiln::runtime
