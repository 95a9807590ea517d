// Internal: owners of the driver's objects. Each keeps its context alive; none throws when it is
// destroyed, also when the driver has already shut down. Includes cuda.h.
#pragma once

#include <memory>
#include <new>
#include <span>
#include <utility>

#include "kiln/device.hpp"
#include "runtime/device/cuda/driver.hpp"

namespace kiln::runtime {

/// The context that a device's work happens in: the caller's, if one of that device is current when
/// this is made, else the device's primary context, which is then released exactly once. A borrowed
/// context must outlive this object.
class CudaContext {
 public:
  /// @throws EnvironmentError when the driver refuses.
  CudaContext(std::shared_ptr<const DriverTable> driver, int ordinal);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const DriverTable& driver() const noexcept { return *driver_; }
  CUcontext get() const noexcept { return context_; }
  CUdevice device() const noexcept { return device_; }

 private:
  std::shared_ptr<const DriverTable> driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  bool retained_ = false;
};

/// Makes a context current for the thread, and restores the previous one at its end. Costs one
/// query when the context is current already.
class CurrentContext {
 public:
  /// @throws EnvironmentError when the driver refuses.
  explicit CurrentContext(const CudaContext& context) : context_(context) {
    context_.driver().check(enter(), "cuCtxPushCurrent");
  }
  /// For destructors: a refusal is ignored.
  CurrentContext(const CudaContext& context, std::nothrow_t) noexcept : context_(context) {
    enter();
  }
  ~CurrentContext() {
    CUcontext ours;
    if (pushed_) context_.driver().CtxPopCurrent(&ours);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  CUresult enter() noexcept {
    CUcontext current = nullptr;
    CUresult result = context_.driver().CtxGetCurrent(&current);
    if (result != CUDA_SUCCESS || current == context_.get()) return result;
    result = context_.driver().CtxPushCurrent(context_.get());
    pushed_ = result == CUDA_SUCCESS;
    return result;
  }

  const CudaContext& context_;
  bool pushed_ = false;
};

/// As above, and lets this thread allocate, load, copy and free while another thread captures a
/// graph.
class WorkingContext {
 public:
  /// @throws EnvironmentError when the driver refuses.
  explicit WorkingContext(const CudaContext& context)
      : current_(context), driver_(context.driver()) {
    const CUresult result = relax();
    driver_.check(result, "cuThreadExchangeStreamCaptureMode");
  }
  WorkingContext(const CudaContext& context, std::nothrow_t) noexcept
      : current_(context, std::nothrow), driver_(context.driver()) {
    relax();
  }
  ~WorkingContext() {
    if (relaxed_) driver_.ThreadExchangeStreamCaptureMode(&mode_);
  }
  WorkingContext(const WorkingContext&) = delete;
  WorkingContext& operator=(const WorkingContext&) = delete;

 private:
  CUresult relax() noexcept {
    const CUresult result = driver_.ThreadExchangeStreamCaptureMode(&mode_);
    relaxed_ = result == CUDA_SUCCESS;
    return result;
  }

  CurrentContext current_;
  const DriverTable& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  ///< then the one to go back to
  bool relaxed_ = false;
};

/// A handle of the driver's and the function that destroys it. Move-only.
template <class Handle, auto Destroy>
class CudaOwner {
 public:
  CudaOwner() = default;
  CudaOwner(std::shared_ptr<const CudaContext> context, Handle handle) noexcept
      : context_(std::move(context)), handle_(handle) {}
  CudaOwner(CudaOwner&& other) noexcept { swap(other); }
  CudaOwner& operator=(CudaOwner&& other) noexcept {
    CudaOwner(std::move(other)).swap(*this);
    return *this;
  }
  ~CudaOwner() {
    if (handle_ == Handle{}) return;
    const WorkingContext working(*context_, std::nothrow);
    // After the driver's shutdown this is refused, and there is nothing left to destroy.
    (context_->driver().*Destroy)(handle_);
  }

  Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != Handle{}; }
  const std::shared_ptr<const CudaContext>& context() const noexcept { return context_; }

  /// Gives up ownership.
  [[nodiscard]] Handle release() noexcept {
    context_.reset();
    return std::exchange(handle_, Handle{});
  }
  void swap(CudaOwner& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(handle_, other.handle_);
  }

 private:
  std::shared_ptr<const CudaContext> context_;
  Handle handle_{};
};

/// Streams are passed around as `kiln::Stream`, the view that owns nothing.
using CudaStream = CudaOwner<CUstream, &DriverTable::StreamDestroy>;
using CudaEvent = CudaOwner<CUevent, &DriverTable::EventDestroy>;
using CudaModule = CudaOwner<CUmodule, &DriverTable::ModuleUnload>;
using CudaMemory = CudaOwner<CUdeviceptr, &DriverTable::MemFree>;
using CudaGraph = CudaOwner<CUgraph, &DriverTable::GraphDestroy>;
using CudaGraphExec = CudaOwner<CUgraphExec, &DriverTable::GraphExecDestroy>;

inline Stream view(const CudaStream& stream) noexcept { return {stream.get()}; }

/// All throw EnvironmentError when the driver refuses, and may be called with any context current.
/// The stream does not wait for the default stream, nor that for it.
CudaStream create_stream(std::shared_ptr<const CudaContext> context);
CudaEvent create_timing_event(std::shared_ptr<const CudaContext> context);
CudaModule load_module(std::shared_ptr<const CudaContext> context,
                       std::span<const std::byte> image);
CudaMemory allocate_memory(std::shared_ptr<const CudaContext> context, std::size_t bytes);

}  // namespace kiln::runtime
