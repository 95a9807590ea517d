// Internal: ranks over NCCL, each call polled against Kiln's deadline.
#pragma once

#include <functional>
#include <memory>

#include "kiln/communicator.hpp"
#include "runtime/transport/nccl/nccl_handle.hpp"

namespace kiln::runtime::ranks {

/// On an engine's own communicator and stream; see nccl_communicator.
/// @throws EnvironmentError
std::unique_ptr<Communicator> adopt_nccl(std::shared_ptr<const NcclTable> table,
                                         std::shared_ptr<const CudaContext> context,
                                         ncclComm_t comm, CUstream stream);

/// Carries rank 0's bytes to all ranks. @throws where that fails
using Carry = std::function<void(std::span<std::byte> bytes)>;

/// A new communicator of `size` ranks. Collective. The caller makes sure before that no rank lacks
/// a library or a device. @throws EnvironmentError, also on the others when NCCL gives rank 0 no id
std::unique_ptr<Communicator> make_nccl(std::shared_ptr<const NcclTable> table,
                                        std::shared_ptr<const CudaContext> context, int rank,
                                        int size, const Carry& carry, Deadline deadline);

/// The same over a communicator.
Carry carry_over(Communicator& bootstrap, Deadline deadline);

}  // namespace kiln::runtime::ranks
