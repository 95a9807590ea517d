// Internal: memory of a CUDA device for other devices of this process (peer access) and for other
// processes (the driver's IPC handles). No multicast.
#pragma once

#include <memory>

#include "runtime/device/peer_access.hpp"

namespace kiln::runtime {

class CudaContext;

/// Null where the driver lacks a function for it. Memory comes from the driver, never from the
/// program's allocator, whose memory other processes may not be able to open.
std::unique_ptr<PeerAccess> make_cuda_peer_access(std::shared_ptr<const CudaContext> context);

}  // namespace kiln::runtime
