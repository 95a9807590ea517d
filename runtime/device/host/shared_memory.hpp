// Memory of this machine that several processes map. It has no name in any file system: whatever
// ends a process, nothing of it is left behind.
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/device/peer_access.hpp"

namespace kiln::runtime {

/// `bytes` zero bytes; with PeerScope::process no other process can open them. The memory is there
/// when this returns: writing to it later does not fail.
/// @throws UserError when that is more than there is; EnvironmentError naming the system's call
std::unique_ptr<PeerMemory> create_shared_memory(std::size_t bytes, PeerScope scope);

/// What another process (or this one) has created. Nobody can make it smaller, so reading and
/// writing cannot fail later. @throws EnvironmentError when it is not there, was withdrawn, or does
/// not have that size
std::unique_ptr<PeerMemory> open_shared_memory(const PeerHandle& handle, std::size_t bytes);

/// Peer access of the host device, where all kernels of a process see the same addresses.
std::unique_ptr<PeerAccess> make_host_peer_access();

}  // namespace kiln::runtime
