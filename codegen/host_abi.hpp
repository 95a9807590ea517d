// What a compiled host kernel and the block scheduler agree on: plain structs, one version number.
//
// A kernel is cut at its synchronisation points into *regions*. Region 0 starts at the kernel's
// first statement, region i resumes after suspension i. A region is run for a range of the block's
// threads; each of them stops at some suspension or exits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kiln::codegen {

/// Raised whenever a struct below or the meaning of a field changes.
inline constexpr std::uint32_t kHostAbiVersion = 3;
/// The symbol under which a shared object exports its `HostKernel`; those of steps end with a
/// suffix.
inline constexpr const char* kHostKernelSymbol = "kiln_host_kernel";
/// The suffix of an entry's names: entry 0 is the kernel's own, those from 1 on are steps.
inline std::string host_entry_suffix(std::size_t entry) {
  return entry == 0 ? std::string() : "_" + std::to_string(entry);
}
/// Value of `HostFrame::next` for a thread that returned.
inline constexpr std::uint32_t kExited = 0xffffffffu;
/// `HostRegion::exit` when threads of the region may stop at different suspensions.
inline constexpr std::uint32_t kMixedExit = 0xfffffffeu;
/// Every per-thread array holds a multiple of this many threads and is aligned to as many bytes.
inline constexpr std::uint32_t kThreadGranularity = 64;
/// Where dynamic shared memory starts, unless a variable asks for more.
inline constexpr std::uint32_t kSharedAlignment = 128;
/// How the arena of a block is aligned at least: the pattern of the widest swizzle repeats after as
/// many bytes, so addresses and places in the arena agree on it.
inline constexpr std::uint32_t kArenaAlignment = 1024;
/// The most blocks of a cluster.
inline constexpr std::uint32_t kMostClusterBlocks = 16;

/// What a suspension waits for. Device headers use the same numbers.
enum class SuspendKind : std::uint32_t {
  block_barrier = 0,
  block_count = 1,  ///< barrier; receive32 of all = how many threads sent non-zero
  warp_barrier = 2,
  warp_exchange32 = 3,  ///< receive32[lane] = send32[lane] of the participants
  warp_exchange64 = 4,
  warp_ballot = 5,  ///< receive32 of the participants = lanes that sent non-zero
  warp_active = 6,  ///< does not wait; receive32 = lanes that wait at the same place
  // The kinds from here on are known to the cluster scheduler only.
  mbarrier_wait = 7,    ///< until the phase of parity send32 at address send64 is complete
  mbarrier_test = 8,    ///< the same, or until nothing else can go on; receive32 = complete
  cluster_wait = 9,     ///< until all threads of the cluster have arrived
  named_sync = 10,      ///< barrier send32 & 15 of send32 >> 8 threads, by warps
  named_arrive = 11,    ///< the same, does not wait for other warps
  warpgroup_wait = 12,  ///< until at most send32 groups of products are at work
};

/// What a kernel asks of the cluster scheduler between suspensions. Device headers use the same
/// numbers. `p` and `x` are the operands of HostServiceFunction.
enum class HostService : std::uint32_t {
  map_shared = 0,         ///< the address in block `x` of the cluster that `p` has in this one
  shared_address = 1,     ///< `p` as a 32-bit address of shared memory
  shared_pointer = 2,     ///< the address behind the 32-bit address `x`
  mbarrier_init = 3,      ///< at `p`, for `x` arrivals
  mbarrier_inval = 4,     ///< at `p`
  mbarrier_arrive = 5,    ///< at `p`, `x` times; returns the state before
  mbarrier_expect = 6,    ///< at `p`, `x` bytes more
  mbarrier_complete = 7,  ///< at `p`, `x` bytes
  cluster_arrive = 8,
  bulk_copy = 9,  ///< `p` is a HostBulkCopy
  bulk_commit = 10,
  bulk_wait = 11,  ///< until at most `x` groups of this thread are under way; with kOnlyRead, read
  warpgroup_mma = 12,  ///< `p` is a HostWarpgroupMma
  warpgroup_commit = 13,
};

/// What moves, and what happens to it on the way.
enum class HostBulkKind : std::uint32_t {
  load = 0,         ///< global to shared memory of the cluster, completes on a barrier
  load_shared = 1,  ///< shared memory of this block to that of another, completes on a barrier
  store = 2,        ///< shared to global memory; belongs to a group of the thread
  add = 3,          ///< as store, combined with what is there
  minimum = 4,
  maximum = 5,
  prefetch = 6,  ///< nothing moves: the map and how many coordinates there are is checked
};

/// Of `x` of bulk_wait: until the groups have read shared memory, not until others see the results.
inline constexpr std::uint64_t kOnlyRead = std::uint64_t{1} << 32;

/// An asynchronous copy. With a tensor map it moves a box, without one `bytes` bytes.
struct HostBulkCopy {
  const void* map;     ///< HostTensorMap, or null
  void* shared;        ///< in this block, or where multicast is 0, in any block of the cluster
  void* other;         ///< global, or for load_shared the source; unused with a map
  void* barrier;       ///< of loads
  std::int32_t at[5];  ///< of a box: its first element by dimension, the innermost one first
  HostBulkKind kind;
  std::uint32_t bytes;
  std::uint32_t type;         ///< of elements that are combined without a map: HostElement
  std::uint32_t multicast;    ///< blocks of the cluster that receive it, as bits; 0: no multicast
  std::uint32_t coordinates;  ///< how many of `at` the kernel has named; 0: not said
};

static_assert(sizeof(HostBulkCopy) == 72);

/// Types of elements that products take.
enum class HostProduct : std::uint32_t { bf16 = 0, f16 = 1, tf32 = 2, e4m3 = 3, e5m2 = 4 };

/// D = A B + D of a warpgroup, as one of its threads sees it.
struct HostWarpgroupMma {
  float* d;            ///< n / 2 values of this thread
  std::uint64_t a, b;  ///< descriptors of matrices in shared memory
  std::uint32_t n;
  HostProduct type;
  std::uint32_t zero;                ///< 1: D is 0 before
  std::uint32_t a_by_row, b_by_row;  ///< 1: neighbours along m or n are neighbours in memory
  std::uint32_t negate;              ///< 1: A, 2: B
  std::uint32_t a_in_registers;      ///< 1: `rows` holds A
  std::uint32_t reserved;
  std::uint32_t rows[2][8];  ///< 32 bytes of each of the two rows that this thread computes
};

static_assert(sizeof(HostWarpgroupMma) == 120);

struct HostFrame;
using HostServiceFunction = std::uint64_t (*)(HostFrame*, std::uint32_t thread, HostService service,
                                              const void* p, std::uint64_t x);

/// One block in flight, as its regions see it. Fields are written by the scheduler only, except for
/// the arrays behind the pointers and `fault`.
struct HostFrame {
  void* const* arguments;  ///< addresses of the parameters
  std::byte* shared;       ///< static shared memory, then dynamic
  std::byte* slots;        ///< values that live across suspensions
  std::uint32_t* next;     ///< per thread: region to run next, or kExited
  std::uint32_t* mask;     ///< per thread: lanes named by the warp suspension it waits at
  std::uint32_t* send32;
  std::uint32_t* receive32;
  std::uint64_t* send64;
  std::uint64_t* receive64;
  const char* fault;          ///< set by a failed assert or a trap
  std::uint32_t slot_stride;  ///< threads per slot array
  std::uint32_t block_index[3];
  std::uint32_t block_dim[3];
  std::uint32_t grid_dim[3];
  std::uint32_t cluster_index[3];  ///< of the block in its cluster
  std::uint32_t cluster_dim[3];    ///< blocks of the cluster
  std::uint32_t cluster_rank;
  HostServiceFunction service;  ///< null outside the cluster scheduler
  void* cluster;                ///< the cluster scheduler's own
};

/// Runs threads [begin, end) of the block, `begin < end`.
using HostRegionFunction = void (*)(HostFrame*, std::uint32_t begin, std::uint32_t end);

struct HostRegion {
  HostRegionFunction run;
  /// The suspension (or kExited) at which every thread stops; `next` is then not written.
  std::uint32_t exit;
  SuspendKind kind;         ///< of the suspension this region resumes from; unused for region 0
  std::uint32_t full_mask;  ///< 1: a warp suspension of all lanes; `mask` is then not written
  std::uint32_t reserved;
};

/// A global variable of the kernel's source that may be written.
struct HostVariable {
  const char* name;  ///< demangled
  void* address;
  std::uint64_t bytes;
};

/// Exported by every host shared object.
struct HostKernel {
  std::uint32_t abi;
  std::uint32_t bytes;  ///< sizeof(HostKernel)
  const char* name;
  const HostRegion* regions;
  const std::uint32_t* parameter_bytes;
  std::uint32_t region_count;
  std::uint32_t parameter_count;
  std::uint32_t slot_bytes;     ///< per thread
  std::uint32_t static_shared;  ///< bytes per block, a multiple of kSharedAlignment if not 0
  std::uint32_t max_threads;    ///< per block, from __launch_bounds__; 0: not bounded
  std::uint32_t uses_warp;      ///< 1: some suspension is of a warp kind
  const HostVariable* variables;
  std::uint64_t variable_count;
  std::uint32_t cluster[3];    ///< from __cluster_dims__; 0: not said
  std::uint32_t uses_cluster;  ///< 1: needs the cluster scheduler
};

}  // namespace kiln::codegen
