// Internal: an ncclComm_t, how it is waited for, and the ways out of it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "kiln/communicator.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"
#include "runtime/transport/nccl/nccl_table.hpp"

namespace kiln::runtime::ranks {

/// Shared with the threads that NCCL must be left on when it does not come back: what NCCL may
/// still write to lives as long as they do.
class NcclHandle : public std::enable_shared_from_this<NcclHandle> {
 public:
  NcclHandle(std::shared_ptr<const NcclTable> table, std::shared_ptr<const CudaContext> context,
             ncclComm_t comm = nullptr)
      : nccl_(std::move(table)), context_(std::move(context)), comm_(comm) {}

  const NcclTable& nccl() const noexcept { return *nccl_; }
  std::shared_ptr<const NcclTable> table() const noexcept { return nccl_; }
  const std::shared_ptr<const CudaContext>& context() const noexcept { return context_; }

  /// NCCL may write to it after the call that was given it has returned.
  ncclComm_t* slot() noexcept { return &comm_; }
  ncclComm_t comm() noexcept { return std::atomic_ref(comm_).load(std::memory_order_acquire); }

  /// Waits until NCCL has done what a call has begun: a call on a non-blocking communicator only
  /// begins it. Nothing: done. `stop`, when set by another thread, ends the wait.
  Communicator::Failure wait(ncclResult_t begun, const char* call, Deadline deadline,
                             const std::atomic<bool>* stop = nullptr);

  /// ncclCommAbort, which ends whatever runs and frees the communicator. NCCL waits in it for its
  /// own threads and for the device: after `within` it is left alone with that. False then.
  bool abort(std::chrono::milliseconds within) noexcept;

  /// Of a communicator that is whole: ncclCommFinalize and ncclCommDestroy; the first waits for the
  /// other ranks of this host, so it is aborted when they do not come.
  void close(std::chrono::milliseconds within) noexcept;

  /// Frees memory. The driver waits in that for all work of the device, so it is left alone with
  /// it, too.
  void free(CudaMemory memory, std::chrono::milliseconds within) noexcept;

 private:
  template <class Call>
  bool on_a_thread(std::chrono::milliseconds within, Call call) noexcept;

  const std::shared_ptr<const NcclTable> nccl_;
  const std::shared_ptr<const CudaContext> context_;
  alignas(std::atomic_ref<ncclComm_t>::required_alignment) ncclComm_t comm_;
};

/// Sleeps a little, longer the more often it was called.
void back_off(int turn);

}  // namespace kiln::runtime::ranks
