// Kiln's own communicators. Each needs only what its name says; asking for one whose library is
// missing says what is missing.
//
//   auto own = kiln::nccl_communicator(engine.nccl(), {engine.stream()});        // an engine's own
//   auto job = kiln::nccl_communicator_from_environment(kiln::deadline_in(60));  // torchrun, Slurm
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kiln/communicator.hpp"
#include "kiln/device.hpp"

namespace kiln {

/// One end per thread of this process (one per device, say); end r is rank r. They settle, and they
/// name the ranks that are late. When an end is destroyed, the others see it as gone at once.
/// @throws UserError when size < 1
std::vector<std::unique_ptr<Communicator>> thread_communicators(int size);

/// The ranks of MPI_COMM_WORLD, on communicators of Kiln's own; initialises MPI if that has not
/// been done, and then finalizes it with the last end, those made by `split` included. A process
/// can start MPI only once, so opening another end afterwards is refused.
///
/// Deadlines cover neither MPI_Init nor MPI_Finalize: a rank that dies there is left to the
/// launcher. A failure names the ranks that do not answer a roll call. Where the program has begun
/// MPI for one thread (less than MPI_THREAD_SERIALIZED), calls on another thread fail, and `abort`
/// there is not told to the others; Kiln starts it with MPI_THREAD_MULTIPLE. After a failure MPI
/// cannot be shut down cleanly, so it is not, and the process must leave by `_exit`. To survive the
/// death of a rank, the job must have been started with recovery (`mpirun --enable-recovery`).
/// @throws EnvironmentError when Kiln was built without MPI, or MPI does not start or was
/// finalized.
std::unique_ptr<Communicator> mpi_communicator(Deadline deadline);

/// Collective. Adds settling to `base`, by small files in a place that all ranks see: the folder
/// `kiln-settle-<user id>` in `folder`, for this user alone. Both folders are created if they do
/// not exist; everything else in `folder`, permissions included, stays as it is. In the place
/// itself only Kiln's own files of earlier days are removed.
///
/// Every rank tries what is needed, hard links included. If something is missing on any of them
/// (the place is a link or is open to others, say), or if `base` settles by itself, `base` is
/// returned unchanged. `why`, unless null, then says what is missing or which rank found it
/// missing; otherwise it is empty. A failure of `base` also shows at its next call.
std::unique_ptr<Communicator> settle_in(std::unique_ptr<Communicator> base,
                                        const std::filesystem::path& folder, Deadline deadline,
                                        std::string* why = nullptr);

// NCCL. libnccl.so.2 (2.18 or newer) and the driver are opened at run time. NCCL cannot tell which
// rank is late or gone: a failure names the call, not the rank. After a failure the communicator is
// aborted before it is destroyed; an abort that NCCL does not finish within 10 s is left to a
// thread, and the process must then leave by `_exit`. All of these throw EnvironmentError when Kiln
// was built without nccl.h, a library is missing, or NCCL or the driver refuses.

/// On an engine's own communicator (an ncclComm_t) and stream (a CUstream; null: a stream of
/// Kiln's own). Neither is ever destroyed. Work is queued on the stream, which must not be
/// capturing. Uses the context that is current now, else the primary one of the communicator's
/// device.
///
/// When a call fails, or `abort` is called, `comm` is aborted with ncclCommAbort: nothing else ends
/// a collective that a dead rank has left. From then on the engine must not touch it, nor destroy
/// it.
///
/// Waiting is by polling, so deadlines are kept once NCCL has accepted a collective. A blocking
/// communicator (`ncclConfig_t::blocking` not 0) may keep the caller inside NCCL for longer, as it
/// connects to its peers at the first collective of a kind; only `abort` from another thread ends
/// that. Prefer non-blocking ones.
/// @throws UserError when `comm` is null
std::unique_ptr<Communicator> nccl_communicator(void* comm, Stream stream);

/// A new, non-blocking communicator of the ranks of `bootstrap` (MPI or threads, say), which
/// carries NCCL's unique id and is not used afterwards. Collective. `device` is a CUDA ordinal,
/// whose primary context is used unless one of that device is current; without it, the current
/// context is.
/// @throws UserError when there is neither
std::unique_ptr<Communicator> nccl_communicator(Communicator& bootstrap, Deadline deadline,
                                                std::optional<int> device = {});

/// As above, for the ranks that `rank_place_from_environment` describes, which meet at a TCP port
/// of rank 0. Without `device`: the current context, else the device of the local rank, else the
/// only device. Ranks that do not come in time are named.
///
/// Address: KILN_RENDEZVOUS_HOST; else torchrun's MASTER_ADDR; else the first host of Slurm's node
/// list. Port: KILN_RENDEZVOUS_PORT; else MASTER_PORT + 1717, since torch's own store listens at
/// MASTER_PORT; else one of 12000 to 31999 that follows from Slurm's job id. Open MPI has neither:
/// set both variables, or use `mpi_communicator` as bootstrap. Connections are not
/// authenticated: those of other programs and other jobs are turned away, but a program that poses
/// as a rank is not.
/// @throws UserError when the environment is inconsistent, or two processes are the same rank
std::unique_ptr<Communicator> nccl_communicator_from_environment(Deadline deadline,
                                                                 std::optional<int> device = {});

/// As above, for ranks that meet by `file` and files beside it, in a folder that all ranks see. No
/// other job may use `file` while this one starts; what an earlier job left there is ignored. The
/// files are removed at the end.
/// @throws UserError when rank or size make no sense, or two processes are the same rank
std::unique_ptr<Communicator> nccl_communicator(const std::filesystem::path& file, int rank,
                                                int size, Deadline deadline,
                                                std::optional<int> device = {});

/// The version of the NCCL that would be used, e.g. `2.28.9`; nothing if there is none. Needs no
/// GPU.
std::optional<std::string> nccl_version();

/// This process among those that a launcher has started.
struct RankPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among those of this host
  int local_size = 0;  ///< how many those are; 0: the launcher does not say
  std::string source;  ///< `torchrun`, `Open MPI` or `Slurm`
};

/// By torchrun's RANK, WORLD_SIZE and LOCAL_RANK; else Open MPI's OMPI_COMM_WORLD_RANK, _SIZE and
/// _LOCAL_RANK; else, in a job step of Slurm, SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID.
/// Returns nothing without a launcher. `mpi` asks for the place in MPI_COMM_WORLD, so torchrun's
/// variables are ignored.
/// @throws UserError naming the variable that is missing, is not a number, or contradicts another
std::optional<RankPlace> rank_place_from_environment(bool mpi = false);

}  // namespace kiln
