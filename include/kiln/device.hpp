// What a constraint, a launch description or a log line may know about the device it runs on.
//
//   const kiln::DeviceInfo& d = runtime.device();
//   d.name, d.target.arch, d.limits.multiprocessors;
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kiln/key.hpp"
#include "kiln/target.hpp"

namespace kiln {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  bool operator==(const Dim3&) const = default;
};

/// How one kernel is launched. A grid with a zero extent is an empty problem: nothing is launched.
struct Launch {
  Dim3 grid{};                ///< blocks; with clusters, a multiple of `cluster` in each dimension
  Dim3 block{};               ///< threads
  unsigned shared_bytes = 0;  ///< dynamic shared memory per block
  Dim3 cluster{1, 1, 1};      ///< blocks that run together and reach each other's shared memory
  bool cooperative = false;   ///< all blocks run at once, so that they may wait for each other
  /// The kernel may start before the one in front of it on its stream has ended (programmatic
  /// dependent launch). It must execute `griddepcontrol.wait` before it touches what that one
  /// reads or writes. The host device runs launches one after the other.
  bool programmatic = false;
  int shared_carveout = -1;  ///< percent of the L1 cache preferred as shared memory; -1: no wish
  bool operator==(const Launch&) const = default;
};

/// A stream of the caller's: a CUstream on a CUDA device, where null is the default stream and work
/// is asynchronous. The host device has no streams: work is done when the call returns.
struct Stream {
  void* handle = nullptr;
};

/// Hard limits, in threads, bytes and counts. The host device answers with its own.
struct DeviceLimits {
  int max_threads_per_block = 1024;
  Dim3 max_block{1024, 1024, 64};
  Dim3 max_grid{2147483647u, 65535, 65535};
  int shared_per_block = 48 * 1024;        ///< bytes, without opting in
  int shared_per_block_optin = 48 * 1024;  ///< bytes, the most dynamic shared memory of a block
  int shared_per_multiprocessor = 48 * 1024;
  int reserved_shared_per_block = 0;  ///< bytes of the driver's own in every block; 0: the usual
  int registers_per_block = 65536;
  int registers_per_multiprocessor = 65536;
  int max_threads_per_multiprocessor = 2048;
  int max_blocks_per_multiprocessor = 32;
  int multiprocessors = 1;  ///< host: hardware threads
  int warp_size = 32;
  /// Bytes of the whole device; 0 if unknown, as where kernels are precompiled without the device.
  /// So constraints and lists of configs should not depend on it.
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;   ///< host: last-level cache
  int compute_capability = 0;  ///< 80, 90, 100, ...; host: 0
  int max_cluster_blocks = 1;  ///< blocks of a cluster; 1: the device has no clusters
  bool cooperative = false;    ///< whether it runs cooperative launches
  bool tensor_maps = false;    ///< whether entries may take tensor maps
  /// Multiprocessors that launches leave to others, such as communication kernels
  /// (RuntimeOptions::reserved_multiprocessors). A launch that is as large as the device counts
  /// with `usable_multiprocessors()`.
  int reserved_multiprocessors = 0;

  constexpr bool on_host() const { return compute_capability == 0; }
  constexpr Target::Kind target_kind() const {
    return on_host() ? Target::Kind::host : Target::Kind::cuda;
  }
  constexpr int usable_multiprocessors() const {
    return multiprocessors > reserved_multiprocessors ? multiprocessors - reserved_multiprocessors
                                                      : 1;
  }
  /// Clusters of `blocks` blocks that run at once where a block has a multiprocessor to itself. It
  /// is exact for pairs. Larger clusters may find fewer places, because a cluster lies in one group
  /// of multiprocessors; those without a place run later.
  constexpr int resident_clusters(int blocks) const {
    const int clusters = usable_multiprocessors() / (blocks > 0 ? blocks : 1);
    return clusters > 0 ? clusters : 1;
  }
};

/// A device as seen by users and by record keys.
struct DeviceInfo {
  std::string id;    ///< `host`, `cuda:0`
  std::string name;  ///< e.g. `NVIDIA H200`, or the CPU's model name
  Target target;     ///< what is compiled for it
  DeviceLimits limits;
  /// What makes measurements comparable: model, multiprocessors, memory, clock class, MIG slice.
  std::vector<KeyField> fingerprint;
  /// Versions kept in records: driver, operating system, ...
  std::vector<KeyField> software;
};

}  // namespace kiln
