// Kiln's own communicators. None needs more than its name says; what is missing is said when asked.
//
//   auto own = kiln::nccl_communicator(engine.nccl(), {engine.stream()});         // an engine's own
//   auto comm = kiln::nccl_communicator_from_environment(kiln::deadline_in(60));  // torchrun, Slurm
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kiln/communicator.hpp"
#include "kiln/device.hpp"

namespace kiln {

/// One end per thread of this process (one per device, say); end r is rank r. They settle, and name
/// the ranks that are late. An end that is destroyed is gone for the others at once.
/// @throws UserError when size < 1
std::vector<std::unique_ptr<Communicator>> thread_communicators(int size);

/// The ranks of MPI_COMM_WORLD, on communicators of Kiln's own; initialises MPI if it is not
/// initialised yet, and then finalizes it with the last end that lives, parts by `split` included.
/// A process can start MPI only once, so opening another end afterwards is refused.
///
/// The deadline does not cover MPI_Init, which has none: a rank that dies there is the launcher's
/// matter. Names the ranks that do not answer a roll call. One thread makes all calls
/// (MPI_THREAD_FUNNELED). After a failure MPI cannot be shut down in good order, and is not: the
/// process is to leave by `_exit`, and to go on at all after a death it must have been started with
/// recovery (`mpirun
/// --enable-recovery`).
/// @throws EnvironmentError when Kiln was built without MPI, or MPI does not start or was
/// finalized.
std::unique_ptr<Communicator> mpi_communicator(Deadline deadline);

/// Collective: `base`, with settling by small files in a place that all ranks see: in `folder`, a
/// folder `kiln-settle-<user id>`, for this user alone. Both are made where they are missing; all
/// else in `folder` is left as it is, and so are permissions. Of what lies in the place, only
/// Kiln's own files of earlier days are removed.
///
/// What is needed is tried on every rank, hard links included. If something is missing on one of
/// them (the place is a link, say, or open to others), or `base` settles by itself, `base` is
/// returned as it is. `why`, unless null, tells what is missing, or which rank found it so; else it
/// is empty. A failure of `base` shows at its next call, too.
std::unique_ptr<Communicator> settle_in(std::unique_ptr<Communicator> base,
                                        const std::filesystem::path& folder, Deadline deadline,
                                        std::string* why = nullptr);

// NCCL. libnccl.so.2 (2.18 or newer) and the driver are opened at run time. NCCL cannot tell which
// rank is late or gone: a failure names the call, not the rank. After a failure the communicator is
// aborted before it is destroyed; an abort that NCCL itself does not end in 10 s is left to a
// thread, and the process is then to leave by `_exit`. All throw EnvironmentError when Kiln was
// built without nccl.h, a library is missing, or NCCL or the driver refuses.

/// On an engine's own communicator (an ncclComm_t) and stream (a CUstream; null: a stream of
/// Kiln's own). Neither is ever destroyed. Work goes to the stream, behind what is there; it must
/// not be capturing. Uses the context that is current now, else the primary one of the
/// communicator's device.
///
/// When a call fails, or `abort` is called, `comm` is aborted with ncclCommAbort: nothing else ends
/// a collective that a dead rank has left. From then on the engine must not touch it, nor destroy
/// it.
///
/// Waiting is by polling, so deadlines are kept once NCCL has accepted a collective. A blocking
/// communicator (`ncclConfig_t::blocking` not 0) may keep the caller inside NCCL for longer, as it
/// connects to its peers at the first collective of a kind; only `abort` from another thread ends
/// that. Give non-blocking ones.
/// @throws UserError when `comm` is null
std::unique_ptr<Communicator> nccl_communicator(void* comm, Stream stream);

/// A new, non-blocking one of the ranks of `bootstrap` (MPI or threads, say), which carries NCCL's
/// unique id, and is not used afterwards. Collective. `device` is a CUDA ordinal, whose primary
/// context is used unless one of that device is current; without it, the current context is.
/// @throws UserError when there is neither
std::unique_ptr<Communicator> nccl_communicator(Communicator& bootstrap, Deadline deadline,
                                                std::optional<int> device = {});

/// As above, of the ranks that `rank_place_from_environment` tells of, which meet at a TCP port of
/// rank 0. Without `device`: the current context, else the device of the local rank, else the only
/// device. Ranks that do not come in time are named.
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

/// As above, of ranks that meet by `file` and files beside it, in a folder that all see. `file` is
/// this job's alone while it starts; what an earlier job left there is not believed. Removed at the
/// end.
/// @throws UserError when rank or size make no sense, or two processes are the same rank
std::unique_ptr<Communicator> nccl_communicator(const std::filesystem::path& file, int rank,
                                                int size, Deadline deadline,
                                                std::optional<int> device = {});

/// Of the NCCL that would be used, e.g. `2.28.9`; nothing where there is none. Needs no GPU.
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
/// Nothing: no launcher. `mpi`: the place in MPI_COMM_WORLD, so torchrun's are not looked at.
/// @throws UserError naming the variable that is missing, is no number, or contradicts another
std::optional<RankPlace> rank_place_from_environment(bool mpi = false);

}  // namespace kiln
