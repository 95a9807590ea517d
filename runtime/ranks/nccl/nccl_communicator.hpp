// Ranks over NCCL: a non-blocking communicator, polled against Kiln's deadline.
#pragma once

#include <memory>

#include "kiln/communicator.hpp"
#include "runtime/ranks/nccl/nccl_table.hpp"

namespace kiln::runtime::ranks {

/// On an engine's own communicator and stream, which are not destroyed; but when a call fails the
/// communicator is aborted (nothing else ends a collective that a dead rank has left), so the
/// engine must then make another. It must be non-blocking (`ncclConfig_t::blocking = 0`) for each
/// deadline to be kept. `stream` may be null: a stream of its own is made.
/// NCCL cannot tell who is late: failures name nobody. The CUDA context must be current at each
/// call. @throws EnvironmentError
std::unique_ptr<Communicator> adopt_nccl(std::shared_ptr<const NcclTable> table, ncclComm_t comm,
                                         CUstream stream);

/// Of the ranks of `bootstrap` (MPI, say), which carries NCCL's unique id and is not used
/// afterwards. Collective. @throws EnvironmentError
std::unique_ptr<Communicator> make_nccl(std::shared_ptr<const NcclTable> table,
                                        Communicator& bootstrap, Deadline deadline);

}  // namespace kiln::runtime::ranks
