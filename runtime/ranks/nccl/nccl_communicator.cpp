#include "runtime/ranks/nccl/nccl_communicator.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime::ranks {

namespace {

using Clock = std::chrono::steady_clock;
using kiln::detail::format;

void pause(int turn) {
  if (turn > 200) std::this_thread::sleep_for(std::chrono::microseconds(turn > 4000 ? 200 : 20));
}

/// Until NCCL has done what it was asked; a call on a non-blocking communicator only begins it.
/// Nothing: it is done.
std::optional<RankFailure> settled(const NcclTable& nccl, ncclComm_t comm, ncclResult_t result,
                                   const char* call, Deadline deadline) {
  for (int turn = 0; result == ncclSuccess || result == ncclInProgress; ++turn) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = nccl.CommGetAsyncError(comm, &state);
    result = asked == ncclSuccess ? state : asked;
    if (result == ncclSuccess) return {};
    if (result == ncclInProgress && Clock::now() >= deadline)
      return RankFailure{RankFailure::Kind::timeout, {}, format("{} did not begin in time", call)};
    pause(turn);
  }
  const auto kind = result == ncclRemoteError ? RankFailure::Kind::lost : RankFailure::Kind::system;
  return RankFailure{
      kind, {}, format("{}: {} ({})", call, nccl.GetErrorString(result), static_cast<int>(result))};
}

/// Device memory that goes away with its owner.
class Staging {
 public:
  explicit Staging(const NcclTable& table) : table_(table) {}
  ~Staging() { release(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  CUresult reserve(std::size_t bytes) {
    if (bytes <= size_) return CUDA_SUCCESS;
    release();
    const CUresult result = table_.MemAlloc(&at_, bytes);
    size_ = result == CUDA_SUCCESS ? bytes : 0;
    return result;
  }
  CUdeviceptr at() const { return at_; }
  /// A kernel may still write to it.
  void leak() { size_ = 0; }

 private:
  void release() {
    if (size_ > 0) table_.MemFree(at_);
    size_ = 0;
  }
  const NcclTable& table_;
  CUdeviceptr at_ = 0;
  std::size_t size_ = 0;
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<const NcclTable> table, ncclComm_t comm, CUstream stream,
                   bool owned)
      : nccl_(std::move(table)), comm_(comm), stream_(stream), owned_(owned), staging_(*nccl_) {
    if (nccl_->CommUserRank(comm_, &rank_) != ncclSuccess ||
        nccl_->CommCount(comm_, &size_) != ncclSuccess)
      throw EnvironmentError("NCCL: the communicator does not say its rank and size");
    if (!stream_) {
      if (const CUresult r = nccl_->StreamCreate(&stream_, CU_STREAM_NON_BLOCKING))
        throw EnvironmentError(format("cuStreamCreate: {}", static_cast<int>(r)));
      own_stream_ = true;
    }
  }

  ~NcclCommunicator() override {
    // Freeing device memory waits for the device: nothing of a broken collective may be left.
    if (broken_) NcclCommunicator::abort(*broken_);
    if (aborted_) staging_.leak();
    if (owned_ && !aborted_) {
      const ncclResult_t begun = nccl_->CommFinalize(comm_);
      if (settled(*nccl_, comm_, begun, "ncclCommFinalize", deadline_in(5)))
        nccl_->CommAbort(comm_);
      else
        nccl_->CommDestroy(comm_);
    }
    if (own_stream_ && !aborted_) nccl_->StreamDestroy(stream_);
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all,
                 Deadline deadline) override {
    return call("ncclAllGather", mine, all, deadline, [&](CUdeviceptr in, CUdeviceptr out) {
      return nccl_->AllGather(pointer(in), pointer(out), mine.size(), ncclInt8, comm_, stream_);
    });
  }

  Failure reduce(std::span<float> values, Reduction op, Deadline deadline) override {
    const auto bytes = std::as_writable_bytes(values);
    // The mean is divided here: then +inf and rounding are the same as on other transports.
    auto failure =
        call("ncclAllReduce", bytes, bytes, deadline, [&](CUdeviceptr in, CUdeviceptr out) {
          return nccl_->AllReduce(pointer(in), pointer(out), values.size(), ncclFloat32,
                                  op == Reduction::max ? ncclMax : ncclSum, comm_, stream_);
        });
    if (!failure && op == Reduction::mean)
      for (float& v : values) v /= static_cast<float>(size_);
    return failure;
  }

  Failure broadcast(std::span<std::byte> bytes, int root, Deadline deadline) override {
    return call("ncclBroadcast", bytes, bytes, deadline, [&](CUdeviceptr in, CUdeviceptr out) {
      return nccl_->Broadcast(pointer(in), pointer(out), bytes.size(), ncclInt8, root, comm_,
                              stream_);
    });
  }

  void abort(const RankFailure& why) noexcept override {
    if (aborted_.exchange(true)) return;
    (void)why;  // NCCL carries no words; the others' operations fail
    nccl_->CommAbort(comm_);
  }

  Failure split(int group, std::unique_ptr<Communicator>& part, Deadline deadline) override {
    if (broken_) return broken_;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const ncclResult_t begun = nccl_->CommSplit(comm_, group, rank_, &comm, &config);
    if (auto failure = settled(*nccl_, comm_, begun, "ncclCommSplit", deadline))
      return broken_ = failure;
    if (auto failure = settled(*nccl_, comm, ncclSuccess, "ncclCommSplit", deadline))
      return broken_ = failure;
    part = std::make_unique<NcclCommunicator>(nccl_, comm, nullptr, true);
    return {};
  }

 private:
  static void* pointer(CUdeviceptr at) { return reinterpret_cast<void*>(at); }

  RankFailure driver_failure(const char* what, CUresult result) const {
    return {RankFailure::Kind::system, {rank_}, format("{}: {}", what, static_cast<int>(result))};
  }

  template <class Start>
  Failure call(const char* name, std::span<const std::byte> mine, std::span<std::byte> out,
               Deadline deadline, Start start) {
    if (aborted_ && !broken_) broken_ = RankFailure{RankFailure::Kind::aborted, {rank_}, "aborted"};
    if (broken_) return broken_;
    if (out.empty()) return {};
    if (Clock::now() >= deadline)
      return broken_ =
                 RankFailure{RankFailure::Kind::timeout, {rank_}, format("too late for {}", name)};
    const std::size_t in_bytes = (mine.size() + 255) / 256 * 256;
    if (const CUresult r = staging_.reserve(in_bytes + out.size()))
      return broken_ = driver_failure("cuMemAlloc", r);
    const CUdeviceptr in = staging_.at(), result = in + in_bytes;
    // Copies of pageable memory wait for the stream without a deadline: it must be idle before.
    if (auto failure = idle("the work before it", deadline)) return broken_ = failure;
    if (const CUresult r = nccl_->MemcpyHtoDAsync(in, mine.data(), mine.size(), stream_))
      return broken_ = driver_failure("cuMemcpyHtoDAsync", r);
    const ncclResult_t begun = start(in, result);
    if (auto failure = settled(*nccl_, comm_, begun, name, deadline)) return broken_ = failure;
    if (auto failure = idle(name, deadline)) return broken_ = failure;
    if (const CUresult r = nccl_->MemcpyDtoHAsync(out.data(), result, out.size(), stream_))
      return broken_ = driver_failure("cuMemcpyDtoHAsync", r);
    return broken_ = idle("cuMemcpyDtoHAsync", deadline_in(10));
  }

  /// Nothing: all work on the stream is done.
  Failure idle(const char* name, Deadline deadline) {
    for (int turn = 0;; ++turn) {
      const CUresult state = nccl_->StreamQuery(stream_);
      if (state == CUDA_SUCCESS) return {};
      if (state != CUDA_ERROR_NOT_READY) return driver_failure(name, state);
      ncclResult_t error = ncclSuccess;
      if (const ncclResult_t asked = nccl_->CommGetAsyncError(comm_, &error); asked != ncclSuccess)
        error = asked;
      if (error != ncclSuccess && error != ncclInProgress)
        return settled(*nccl_, comm_, error, name, deadline);
      if (aborted_) return RankFailure{RankFailure::Kind::aborted, {rank_}, "aborted"};
      if (Clock::now() >= deadline)
        return RankFailure{RankFailure::Kind::timeout, {}, format("{} did not end in time", name)};
      pause(turn);
    }
  }

  const std::shared_ptr<const NcclTable> nccl_;
  ncclComm_t comm_;
  CUstream stream_;
  const bool owned_;
  bool own_stream_ = false;
  Staging staging_;
  int rank_ = 0, size_ = 1;
  Failure broken_;
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::unique_ptr<Communicator> adopt_nccl(std::shared_ptr<const NcclTable> table, ncclComm_t comm,
                                         CUstream stream) {
  return std::make_unique<NcclCommunicator>(std::move(table), comm, stream, false);
}

std::unique_ptr<Communicator> make_nccl(std::shared_ptr<const NcclTable> table,
                                        Communicator& bootstrap, Deadline deadline) {
  // Rank 0's success travels with the id, so that nobody waits for an id that cannot come.
  struct {
    ncclUniqueId id;
    int good;
  } told{};
  if (bootstrap.rank() == 0) told.good = table->GetUniqueId(&told.id) == ncclSuccess;
  if (auto failure = bootstrap.broadcast(std::as_writable_bytes(std::span(&told, 1)), 0, deadline))
    throw EnvironmentError("NCCL: its unique id did not arrive: " + failure->describe());
  if (told.good != 1) throw EnvironmentError("NCCL: ncclGetUniqueId failed on rank 0");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t begun =
      table->CommInitRankConfig(&comm, bootstrap.size(), told.id, bootstrap.rank(), &config);
  if (auto failure = settled(*table, comm, begun, "ncclCommInitRankConfig", deadline)) {
    if (comm) table->CommAbort(comm);
    throw EnvironmentError("NCCL: " + failure->describe());
  }
  return std::make_unique<NcclCommunicator>(std::move(table), comm, nullptr, true);
}

}  // namespace kiln::runtime::ranks
