#include "runtime/device/cuda/peer_access.hpp"

#include <atomic>
#include <cstring>
#include <list>
#include <mutex>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"

namespace kiln::runtime {
namespace {

/// An IPC handle opens the whole block that an allocation lies in. One of this size is a block of
/// its own, so nothing else of the process is shared with it.
constexpr std::size_t kIpcBlock = std::size_t{2} << 20;

/// Memory that is never released, nor is its context. It stays reachable for leak checkers.
struct KeptMemory {
  std::mutex mutex;
  std::list<CudaMemory> blocks;
};

KeptMemory& kept_memory() {
  static KeptMemory& all = *new KeptMemory;
  return all;
}

class SharedCudaMemory final : public PeerMemory {
 public:
  explicit SharedCudaMemory(CudaMemory memory) { memory_.push_back(std::move(memory)); }
  ~SharedCudaMemory() override {
    if (!forever_) return;
    KeptMemory& kept = kept_memory();
    const std::lock_guard lock(kept.mutex);
    kept.blocks.splice(kept.blocks.end(), memory_);
  }

  void* data() const noexcept override { return reinterpret_cast<void*>(memory_.front().get()); }
  PeerHandle handle() const override {
    const CudaMemory& memory = memory_.front();
    const WorkingContext working(*memory.context());
    const DriverTable& driver = memory.context()->driver();
    CUipcMemHandle ipc;
    driver.check(driver.IpcGetMemHandle(&ipc, memory.get()), "cuIpcGetMemHandle");
    PeerHandle handle;
    static_assert(sizeof ipc == sizeof handle);
    std::memcpy(handle.data(), &ipc, sizeof ipc);
    return handle;
  }
  /// Ranks of this process may share it and go on using it: only its release is different.
  void keep_forever() noexcept override { forever_ = true; }

 private:
  std::list<CudaMemory> memory_;  ///< one; its node moves to kept_memory() without allocating
  std::atomic<bool> forever_ = false;
};

using OpenedCudaMemory = CudaOwner<CUdeviceptr, &DriverTable::IpcCloseMemHandle>;

class PeersCudaMemory final : public PeerMemory {
 public:
  explicit PeersCudaMemory(OpenedCudaMemory memory) : memory_(std::move(memory)) {}

  void* data() const noexcept override { return reinterpret_cast<void*>(memory_.get()); }
  PeerHandle handle() const override { throw InternalError("another rank's memory has no handle"); }

 private:
  OpenedCudaMemory memory_;
};

using RegisteredMemory = CudaOwner<void*, &DriverTable::MemHostUnregister>;

class MappedHostMemory final : public PeerMemory {
 public:
  MappedHostMemory(RegisteredMemory memory, CUdeviceptr address)
      : memory_(std::move(memory)), address_(address) {}

  void* data() const noexcept override { return reinterpret_cast<void*>(address_); }
  PeerHandle handle() const override { throw InternalError("mapped memory has no handle"); }

 private:
  RegisteredMemory memory_;
  CUdeviceptr address_;
};

class CudaPeerAccess final : public PeerAccess {
 public:
  explicit CudaPeerAccess(std::shared_ptr<const CudaContext> context)
      : context_(std::move(context)), driver_(context_->driver()) {}

  std::unique_ptr<PeerMemory> share(std::size_t bytes, PeerScope scope) override {
    const WorkingContext working(*context_);
    if (scope == PeerScope::machine) bytes = (bytes + kIpcBlock - 1) / kIpcBlock * kIpcBlock;
    auto memory = std::make_unique<SharedCudaMemory>(allocate_memory(context_, bytes));
    const CudaStream stream = create_stream(context_);
    driver_.check(driver_.MemsetD8Async(reinterpret_cast<CUdeviceptr>(memory->data()), 0, bytes,
                                        stream.get()),
                  "cuMemsetD8Async");
    driver_.check(driver_.StreamSynchronize(stream.get()), "cuStreamSynchronize");
    return memory;
  }

  std::unique_ptr<PeerMemory> open(const PeerHandle& handle, std::size_t) override {
    const WorkingContext working(*context_);
    CUipcMemHandle ipc;
    std::memcpy(&ipc, handle.data(), sizeof ipc);
    CUdeviceptr address = 0;
    driver_.check(driver_.IpcOpenMemHandle(&address, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                  "cuIpcOpenMemHandle");
    return std::make_unique<PeersCudaMemory>(OpenedCudaMemory(context_, address));
  }

  void reach(PeerAccess& theirs) override {
    const auto* other = dynamic_cast<CudaPeerAccess*>(&theirs);
    if (!other) throw EnvironmentError("a CUDA device does not reach another kind of device");
    if (other->context_->get() == context_->get()) return;
    const WorkingContext working(*context_);
    const CUdevice mine = context_->device(), peer = other->context_->device();
    int can = mine == peer;
    if (!can) driver_.check(driver_.DeviceCanAccessPeer(&can, mine, peer), "cuDeviceCanAccessPeer");
    if (!can)
      throw EnvironmentError(detail::format(
          "device {} cannot reach the memory of device {}: the machine connects them without peer "
          "access (see nvidia-smi topo -p2p rw)",
          mine, peer));
    const CUresult result = driver_.CtxEnablePeerAccess(other->context_->get(), 0);
    if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
      driver_.check(result, "cuCtxEnablePeerAccess");
  }

  std::unique_ptr<PeerMemory> map_host(void* memory, std::size_t bytes) override {
    const WorkingContext working(*context_);
    driver_.check(driver_.MemHostRegister(
                      memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
                  "cuMemHostRegister");
    RegisteredMemory registered(context_, memory);
    CUdeviceptr address = 0;
    driver_.check(driver_.MemHostGetDevicePointer(&address, memory, 0),
                  "cuMemHostGetDevicePointer");
    return std::make_unique<MappedHostMemory>(std::move(registered), address);
  }

 private:
  std::shared_ptr<const CudaContext> context_;
  const DriverTable& driver_;
};

}  // namespace

std::unique_ptr<PeerAccess> make_cuda_peer_access(std::shared_ptr<const CudaContext> context) {
  if (!context->driver().can_share()) return nullptr;
  return std::make_unique<CudaPeerAccess>(std::move(context));
}

}  // namespace kiln::runtime
