#include "runtime/transport/nccl/nccl_communicator.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/transport/groups.hpp"

namespace kiln::runtime::ranks {

namespace {

using Clock = std::chrono::steady_clock;
using kiln::detail::format;
using namespace std::chrono_literals;

constexpr auto kAbortWithin = 10s;
constexpr auto kCloseWithin = 5s;
constexpr auto kFreeWithin = 1s;
constexpr auto kNoticeWithin = 500ms;  ///< a thread in a call sees an abort in this time

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclHandle> handle, CUstream stream, bool owned)
      : handle_(std::move(handle)), stream_(stream), owned_(owned) {
    const NcclTable& nccl = handle_->nccl();
    const WorkingContext working(context());
    if (nccl.CommUserRank(handle_->comm(), &rank_) != ncclSuccess ||
        nccl.CommCount(handle_->comm(), &size_) != ncclSuccess)
      throw EnvironmentError("NCCL: the communicator does not say its rank and size");
    if (!stream_) {
      own_stream_ = create_stream(handle_->context());
      stream_ = own_stream_.get();
    }
  }

  ~NcclCommunicator() override {
    if (broken_ || aborted_) {
      NcclCommunicator::abort({});
      if (half_made_) half_made_->abort(kAbortWithin);
      // Another caller's kernel may still be running.
      handle_->free(std::move(staging_), kFreeWithin);
    } else if (owned_) {
      handle_->close(kCloseWithin);
    }
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all,
                 Deadline deadline) override {
    if (all.size() != mine.size() * static_cast<std::size_t>(size_))
      return RankFailure{
          RankFailure::Kind::mismatch, {rank_}, "gather into a buffer of the wrong size"};
    return call("ncclAllGather", mine, all, deadline, [&](void* in, void* out) {
      return nccl().AllGather(in, out, mine.size(), ncclInt8, handle_->comm(), stream_);
    });
  }

  Failure reduce(std::span<float> values, Reduction op, Deadline deadline) override {
    const auto bytes = std::as_writable_bytes(values);
    // The mean is divided here, so that +inf and rounding are as on other transports.
    auto failure = call("ncclAllReduce", bytes, bytes, deadline, [&](void* in, void* out) {
      return nccl().AllReduce(in, out, values.size(), ncclFloat32,
                              op == Reduction::max ? ncclMax : ncclSum, handle_->comm(), stream_);
    });
    if (!failure && op == Reduction::mean)
      for (float& v : values) v /= static_cast<float>(size_);
    return failure;
  }

  Failure broadcast(std::span<std::byte> bytes, int root, Deadline deadline) override {
    return call("ncclBroadcast", bytes, bytes, deadline, [&](void* in, void* out) {
      return nccl().Broadcast(in, out, bytes.size(), ncclInt8, root, handle_->comm(), stream_);
    });
  }

  /// NCCL carries no messages: the others' operations fail or reach their deadlines. A thread that
  /// waits in a call is released first, since the abort frees what that thread reads; one that does
  /// not return hangs inside NCCL, and the abort releases it.
  void abort(const RankFailure&) noexcept override {
    aborted_ = true;
    std::unique_lock in_use(in_use_, std::defer_lock);
    const auto until = Clock::now() + kNoticeWithin;
    while (!in_use.try_lock() && Clock::now() < until) std::this_thread::sleep_for(1ms);
    if (!gone_.exchange(true)) handle_->abort(kAbortWithin);
  }

  Failure split(int group, std::unique_ptr<Communicator>& part, Deadline deadline) override {
    std::vector<int> groups(static_cast<std::size_t>(size_));
    if (auto failure = gather(std::as_bytes(std::span(&group, 1)),
                              std::as_writable_bytes(std::span(groups)), deadline))
      return failure;
    if (auto obstacle = obstacle_of(groups)) return obstacle;
    return guarded("ncclCommSplit", deadline, [&]() -> Failure {
      const auto child = std::make_shared<NcclHandle>(handle_->table(), handle_->context());
      half_made_ = child;  // NCCL may still write to it after a failure
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      config.splitShare = 0;  // the end of one must not be the end of another
      const ncclResult_t begun =
          nccl().CommSplit(handle_->comm(), group, rank_, child->slot(), &config);
      auto failure = handle_->wait(begun, "ncclCommSplit", deadline, &aborted_);
      if (!failure && !child->comm())
        failure = RankFailure{
            RankFailure::Kind::system, {rank_}, "ncclCommSplit returned no communicator"};
      if (!failure) failure = child->wait(ncclSuccess, "ncclCommSplit", deadline, &aborted_);
      if (failure) return failure;
      part = std::make_unique<NcclCommunicator>(child, nullptr, true);
      half_made_.reset();
      return {};
    });
  }

 private:
  const NcclTable& nccl() const { return handle_->nccl(); }
  const CudaContext& context() const { return *handle_->context(); }

  Failure driver_failure(const char* call, CUresult result) const {
    return RankFailure{RankFailure::Kind::system, {rank_}, nccl().driver->describe(result, call)};
  }

  /// Does `work` unless this end is broken, and breaks it when that fails.
  template <class Work>
  Failure guarded(const char* name, Deadline deadline, Work work) {
    const std::lock_guard in_use(in_use_);
    if (aborted_ && !broken_) broken_ = RankFailure{RankFailure::Kind::aborted, {rank_}, "aborted"};
    if (broken_) return broken_;
    if (Clock::now() >= deadline)
      return broken_ = RankFailure{
                 RankFailure::Kind::timeout, {rank_}, format("it arrived too late for {}", name)};
    try {
      const WorkingContext working(context());
      broken_ = work();
    } catch (const std::exception& error) {
      broken_ = RankFailure{RankFailure::Kind::system, {rank_}, error.what()};
    }
    return broken_;
  }

  template <class Start>
  Failure call(const char* name, std::span<const std::byte> mine, std::span<std::byte> out,
               Deadline deadline, Start start) {
    return guarded(name, deadline, [&]() -> Failure {
      if (out.empty()) return {};
      const std::size_t in_bytes = (mine.size() + 255) / 256 * 256;
      if (in_bytes + out.size() > staged_) {
        staging_ = {};
        staged_ = 0;
        staging_ = allocate_memory(handle_->context(), in_bytes + out.size());
        staged_ = in_bytes + out.size();
      }
      const DriverTable& driver = *nccl().driver;
      const CUdeviceptr in = staging_.get(), result = in + in_bytes;
      // Copies of pageable memory wait for the stream without a deadline: it must be idle before.
      if (auto failure = idle("the work before it", deadline)) return failure;
      if (const CUresult r = driver.MemcpyHtoDAsync(in, mine.data(), mine.size(), stream_))
        return driver_failure("cuMemcpyHtoDAsync", r);
      const ncclResult_t begun =
          start(reinterpret_cast<void*>(in), reinterpret_cast<void*>(result));
      if (auto failure = handle_->wait(begun, name, deadline, &aborted_)) return failure;
      if (auto failure = idle(name, deadline)) return failure;
      if (const CUresult r = driver.MemcpyDtoHAsync(out.data(), result, out.size(), stream_))
        return driver_failure("cuMemcpyDtoHAsync", r);
      return idle("cuMemcpyDtoHAsync", deadline_in(10));
    });
  }

  /// Nothing: all work on the stream is done.
  Failure idle(const char* name, Deadline deadline) {
    for (int turn = 0;; ++turn) {
      // First: an abort ends the work on the stream, too, without a result.
      if (aborted_) return RankFailure{RankFailure::Kind::aborted, {rank_}, format("in {}", name)};
      const CUresult state = nccl().driver->StreamQuery(stream_);
      if (state == CUDA_SUCCESS) return {};
      if (state != CUDA_ERROR_NOT_READY) return driver_failure(name, state);
      ncclResult_t error = ncclSuccess;
      const ncclResult_t asked = nccl().CommGetAsyncError(handle_->comm(), &error);
      if (asked != ncclSuccess) error = asked;
      if (error != ncclSuccess && error != ncclInProgress)
        return handle_->wait(error, name, deadline);
      if (Clock::now() >= deadline)
        return RankFailure{RankFailure::Kind::timeout, {}, format("{} did not end in time", name)};
      back_off(turn);
    }
  }

  const std::shared_ptr<NcclHandle> handle_;
  std::shared_ptr<NcclHandle> half_made_;
  CudaStream own_stream_;
  CUstream stream_;
  const bool owned_;
  CudaMemory staging_;
  std::size_t staged_ = 0;
  int rank_ = 0, size_ = 1;
  Failure broken_;
  std::mutex in_use_;
  std::atomic<bool> aborted_{false};  ///< an abort was asked for
  std::atomic<bool> gone_{false};     ///< NCCL was told to abort
};

}  // namespace

std::unique_ptr<Communicator> adopt_nccl(std::shared_ptr<const NcclTable> table,
                                         std::shared_ptr<const CudaContext> context,
                                         ncclComm_t comm, CUstream stream) {
  auto handle = std::make_shared<NcclHandle>(std::move(table), std::move(context), comm);
  return std::make_unique<NcclCommunicator>(std::move(handle), stream, false);
}

std::unique_ptr<Communicator> make_nccl(std::shared_ptr<const NcclTable> table,
                                        std::shared_ptr<const CudaContext> context, int rank,
                                        int size, const Carry& carry, Deadline deadline) {
  const WorkingContext working(*context);
  // Rank 0's success travels with the id, so that nobody waits for an id that cannot come.
  struct {
    ncclUniqueId id;
    int result;
  } told{};
  if (rank == 0) told.result = static_cast<int>(table->GetUniqueId(&told.id));
  carry(std::as_writable_bytes(std::span(&told, 1)));
  if (told.result != ncclSuccess)
    throw EnvironmentError(format("ncclGetUniqueId failed on rank 0: {} ({})",
                                  table->GetErrorString(static_cast<ncclResult_t>(told.result)),
                                  told.result));
  auto handle = std::make_shared<NcclHandle>(table, context);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 0;
  const ncclResult_t begun =
      table->CommInitRankConfig(handle->slot(), size, told.id, rank, &config);
  Communicator::Failure failure;
  if (!handle->comm())
    failure = RankFailure{RankFailure::Kind::system,
                          {rank},
                          format("ncclCommInitRankConfig: {} ({}); NCCL_DEBUG=WARN says more",
                                 table->GetErrorString(begun), static_cast<int>(begun))};
  else
    failure = handle->wait(begun, "ncclCommInitRankConfig", deadline);
  if (failure) {
    handle->abort(kAbortWithin);
    throw EnvironmentError("NCCL: " + failure->describe());
  }
  try {
    return std::make_unique<NcclCommunicator>(handle, nullptr, true);
  } catch (...) {
    handle->abort(kAbortWithin);
    throw;
  }
}

Carry carry_over(Communicator& bootstrap, Deadline deadline) {
  return [&bootstrap, deadline](std::span<std::byte> bytes) {
    if (auto failure = bootstrap.broadcast(bytes, 0, deadline))
      throw EnvironmentError("NCCL's unique id did not arrive: " + failure->describe());
  };
}

}  // namespace kiln::runtime::ranks
