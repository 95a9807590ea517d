#include "runtime/transport/nccl/nccl_handle.hpp"

#include <future>
#include <thread>

#include "kiln/detail/format.hpp"

namespace kiln::runtime::ranks {

using Clock = std::chrono::steady_clock;
using kiln::detail::format;

void back_off(int turn) {
  if (turn > 200) std::this_thread::sleep_for(std::chrono::microseconds(turn > 4000 ? 200 : 20));
}

Communicator::Failure NcclHandle::wait(ncclResult_t begun, const char* call, Deadline deadline,
                                       const std::atomic<bool>* stop) {
  ncclResult_t result = begun;
  for (int turn = 0; result == ncclSuccess || result == ncclInProgress; ++turn) {
    // First: the caller that set it may have freed the communicator.
    if (stop && *stop) return RankFailure{RankFailure::Kind::aborted, {}, format("in {}", call)};
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = nccl_->CommGetAsyncError(comm(), &state);
    result = asked == ncclSuccess ? state : asked;
    if (result == ncclSuccess) return {};
    if (result != ncclInProgress) break;
    if (Clock::now() >= deadline)
      return RankFailure{RankFailure::Kind::timeout, {}, format("{} did not begin in time", call)};
    back_off(turn);
  }
  const auto kind = result == ncclRemoteError ? RankFailure::Kind::lost : RankFailure::Kind::system;
  return RankFailure{
      kind,
      {},
      format("{}: {} ({})", call, nccl_->GetErrorString(result), static_cast<int>(result))};
}

/// Whether the call returned in time. If no thread can be started, waits for the call.
template <class Call>
bool NcclHandle::on_a_thread(std::chrono::milliseconds within, Call call) noexcept {
  // After the driver's shutdown there is nothing left to end, and NCCL may no longer be called.
  CUcontext current = nullptr;
  if (nccl_->driver->CtxGetCurrent(&current) == CUDA_ERROR_DEINITIALIZED) return true;
  try {
    auto back = std::make_shared<std::promise<void>>();
    std::future<void> returned = back->get_future();
    std::thread([self = shared_from_this(), back, call]() mutable {
      {
        const WorkingContext working(*self->context_, std::nothrow);
        call(*self);
      }
      self.reset();  // a waiting thread may be the last to hold the context
      back->set_value();
    }).detach();
    return returned.wait_for(within) == std::future_status::ready;
  } catch (const std::exception&) {
    const WorkingContext working(*context_, std::nothrow);
    call(*this);
    return true;
  }
}

bool NcclHandle::abort(std::chrono::milliseconds within) noexcept {
  if (!comm()) return true;
  return on_a_thread(within, [](NcclHandle& self) { self.nccl_->CommAbort(self.comm()); });
}

void NcclHandle::close(std::chrono::milliseconds within) noexcept {
  if (!comm()) return;
  on_a_thread(2 * within, [within](NcclHandle& self) {
    const ncclResult_t begun = self.nccl_->CommFinalize(self.comm());
    if (self.wait(begun, "ncclCommFinalize", Clock::now() + within))
      self.nccl_->CommAbort(self.comm());
    else
      self.nccl_->CommDestroy(self.comm());
  });
}

void NcclHandle::free(CudaMemory memory, std::chrono::milliseconds within) noexcept {
  const auto held = std::make_shared<CudaMemory>(std::move(memory));
  on_a_thread(within, [held](NcclHandle&) { *held = {}; });
}

}  // namespace kiln::runtime::ranks
