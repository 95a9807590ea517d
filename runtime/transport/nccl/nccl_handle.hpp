// Internal: an ncclComm_t, how to wait for it, and how to end it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "kiln/communicator.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"
#include "runtime/transport/nccl/nccl_table.hpp"

namespace kiln::runtime::ranks {

/// Shared with the threads that are left inside NCCL when a call does not return, so that what NCCL
/// may still write to lives as long as they do.
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

  /// ncclCommAbort, which ends whatever runs and frees the communicator. In it NCCL waits for its
  /// own threads and for the device; after `within` the call is left to a thread, and this returns
  /// false.
  bool abort(std::chrono::milliseconds within) noexcept;

  /// For a communicator that has not failed: ncclCommFinalize and ncclCommDestroy; the first waits
  /// for the other ranks of this host, so it is aborted when they do not come.
  void close(std::chrono::milliseconds within) noexcept;

  /// Frees memory. The driver then waits for all work of the device, so this call, too, may be left
  /// to a thread.
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
