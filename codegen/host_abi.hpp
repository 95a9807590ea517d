// What a compiled host kernel and the block scheduler agree on: plain structs, one version number.
//
// A kernel is cut at its synchronisation points into *regions*. Region 0 starts at the kernel's
// first statement, region i resumes after suspension i. A region is run for a range of the block's
// threads; each of them stops at some suspension or exits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kiln::codegen {

/// Raised whenever a struct below or the meaning of a field changes.
inline constexpr std::uint32_t kHostAbiVersion = 2;
/// The symbol under which a shared object exports its `HostKernel`.
inline constexpr const char* kHostKernelSymbol = "kiln_host_kernel";
/// Value of `HostFrame::next` for a thread that returned.
inline constexpr std::uint32_t kExited = 0xffffffffu;
/// `HostRegion::exit` when threads of the region may stop at different suspensions.
inline constexpr std::uint32_t kMixedExit = 0xfffffffeu;
/// Every per-thread array holds a multiple of this many threads and is aligned to as many bytes.
inline constexpr std::uint32_t kThreadGranularity = 64;
/// Where dynamic shared memory starts, and how the arena itself is aligned.
inline constexpr std::uint32_t kSharedAlignment = 128;

/// What a suspension waits for. Device headers use the same numbers.
enum class SuspendKind : std::uint32_t {
  block_barrier = 0,
  block_count = 1,  ///< barrier; receive32 of all = how many threads sent non-zero
  warp_barrier = 2,
  warp_exchange32 = 3,  ///< receive32[lane] = send32[lane] of the participants
  warp_exchange64 = 4,
  warp_ballot = 5,  ///< receive32 of the participants = lanes that sent non-zero
  warp_active = 6,  ///< does not wait; receive32 = lanes that wait at the same place
};

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
};

}  // namespace kiln::codegen
