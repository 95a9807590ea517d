// Kiln's own communicators. None needs more than its name says; what is missing is said when asked.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "kiln/communicator.hpp"

namespace kiln {

/// One end per thread of this process (one per device, say); end r is rank r. They settle, and name
/// who is late. An end that is destroyed is gone for the others at once.
/// @throws UserError when size < 1
std::vector<std::unique_ptr<Communicator>> thread_communicators(int size);

/// The ranks of MPI_COMM_WORLD, on communicators of Kiln's own; initialises MPI if nobody has.
/// Names who does not answer a roll call. One thread makes all calls (MPI_THREAD_FUNNELED). After a
/// failure MPI cannot be shut down in good order: the process is to leave by `_exit`, and to go on
/// at all after a death it must have been started with recovery (`mpirun --enable-recovery`).
/// @throws EnvironmentError when Kiln was built without MPI or MPI does not start.
std::unique_ptr<Communicator> mpi_communicator(Deadline deadline);

/// Collective: `base`, with settling by small files in a folder that all ranks see. Whether they do
/// is tried; if not on all, or if `base` settles by itself, `base` is returned as it is. Files of
/// earlier days are removed. A failure of `base` shows at its next call.
std::unique_ptr<Communicator> settle_in(std::unique_ptr<Communicator> base,
                                        const std::filesystem::path& folder, Deadline deadline);

}  // namespace kiln
