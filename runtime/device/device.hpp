// The one interface through which everything else sees hardware. CUDA, host and recorded devices
// implement it; the tuner and the handles know nothing else.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/binary.hpp"
#include "codegen/compiler.hpp"
#include "kiln/detail/bound_launch.hpp"
#include "kiln/device.hpp"
#include "kiln/error.hpp"
#include "kiln/tensor_map.hpp"
#include "runtime/device/graphs.hpp"
#include "runtime/device/module_count.hpp"
#include "runtime/device/stopwatch.hpp"
#include "runtime/device/stream_order.hpp"

namespace kiln::runtime {

class EntryArguments;
class PeerAccess;

/// The stage after Binary: code loaded on a device, entry resolved, ready to launch. Keeps its
/// module alive. Immutable after load; safe to launch from several threads.
class Module {
 public:
  virtual ~Module() = default;
  /// Resources as the device reports them, else as the compiler reported them.
  virtual const codegen::ResourceUsage& resources() const noexcept = 0;
  /// Whether it has global variables. Where it has none, launches cannot tell two loads of one
  /// binary apart.
  virtual bool has_variables() const noexcept = 0;
  /// A step of this kernel, in the same module. @pre it was loaded with more steps than that
  virtual const Module& step(std::size_t index) const {
    throw InternalError("a kernel was loaded without its step " + std::to_string(index));
  }

  std::optional<Digest> binary_key{};  ///< Binary::key of what it was loaded from
};

/// A global variable (`__constant__`, `__device__`) of a loaded module.
struct ModuleVariable {
  std::string name;  ///< for people, with its namespaces: `image::filter`
  void* address = nullptr;
  std::size_t bytes = 0;
};

/// A recorded sequence of launches. Keeps its device's context alive, but neither the kernels nor
/// the memory that the launches name. Not thread-safe.
class Replay {
 public:
  virtual ~Replay() = default;
  /// Puts the whole sequence on `stream`. @throws EnvironmentError when the device refuses.
  virtual void run(Stream stream) = 0;
};

/// A kernel faulted, and the device does no more work for this process.
class DeviceLost : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

/// An untimed launch found that its own results are wrong, or that it wrote where it may not.
class WrongResult : public Error {
 public:
  using Error::Error;
};

/// A tensor map as a kernel's argument: opaque, 128 bytes.
struct alignas(128) EncodedMap {
  std::array<std::byte, 128> bytes{};
};

/// All functions are safe to call from several threads. Failures of the device are
/// EnvironmentErrors.
class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const noexcept = 0;

  /// Launches may ask for as much dynamic shared memory and as large clusters as `launch` does; its
  /// grid and block do not matter. Likewise `steps`, one for each step of the binary; one whose
  /// grid is empty asks for nothing.
  /// @throws UserError when that is over the device's limit; EnvironmentError when loading fails.
  virtual std::shared_ptr<Module> load(const codegen::Binary& binary, const Launch& launch,
                                       std::span<const Launch> steps = {}) = 0;

  /// The variables of the kernel's module. No other module shares them, not even one of the same
  /// binary.
  virtual std::vector<ModuleVariable> variables(const Module& /*kernel*/) const { return {}; }

  /// Asynchronous on `stream` where the device has streams. `args[i]` points to the i-th argument,
  /// read before the call returns. Takes no lock and allocates nothing.
  virtual void launch(const Module& kernel, const Launch& launch, Stream stream,
                      void** args) const = 0;

  /// A launch that is made again and again: what the device finds out about it is found out once.
  /// `kernel` and this device must outlive what is returned.
  virtual std::shared_ptr<const detail::BoundLaunch> fixed(const Module& kernel,
                                                           const Launch& launch,
                                                           EntryArguments arguments) const;

  /// launch() for what is verified, not timed: it may be slower and find more. The host device
  /// finds writes outside a block's shared memory. @throws WrongResult that says where
  virtual void launch_checked(const Module& kernel, const Launch& launch, Stream stream,
                              void** args) const {
    this->launch(kernel, launch, stream, args);
  }

  /// The map as an entry's argument takes it. `address` is aligned to kTensorMapAlignment.
  /// @throws EnvironmentError when the device has no tensor maps or refuses this one
  virtual EncodedMap encode(const TensorMap& /*map*/, void* /*address*/) const { no_maps(); }
  /// Lets a map stand for a like array elsewhere. Takes no lock and allocates nothing.
  /// @throws EnvironmentError when the device refuses it
  virtual void move(EncodedMap& /*map*/, void* /*address*/) const { no_maps(); }

  /// Blocks of `threads` threads that fit a multiprocessor at once; 0: it cannot be launched.
  virtual int occupancy(const Module& kernel, int threads, unsigned shared_bytes) const = 0;

  /// Bytes that allocate() can still give; nothing if that is unknown.
  virtual std::optional<std::int64_t> available() const { return {}; }
  /// The part of these bytes that tunings leave to the program.
  std::uint64_t reserve() const noexcept { return reserve_.load(std::memory_order_relaxed); }
  void set_reserve(std::uint64_t bytes) noexcept { reserve_ = bytes; }
  /// Each allocation takes a multiple of this many bytes.
  virtual std::size_t granularity() const noexcept { return 1; }
  /// Uses the program's allocator, if the device was opened with one.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory, std::size_t bytes) noexcept = 0;
  virtual void copy_to_device(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes) = 0;
  /// Digests of `count` arrays of `bytes` bytes each, `stride` bytes apart, computed where they
  /// lie, as array_digest() computes them: equal contents have equal ones, others hardly ever.
  /// Waits for the tuning stream.
  /// Empty: this device has none, or none of such an array; then compare copies of the contents.
  virtual std::vector<std::uint64_t> digests(const void* /*memory*/, std::size_t /*bytes*/,
                                             std::size_t /*stride*/, std::size_t /*count*/) {
    return {};
  }
  virtual void copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void fill(void* memory, std::byte value, std::size_t bytes, Stream stream) = 0;

  /// Runs `work` where calls of the device's own libraries find its context.
  virtual void within(const std::function<void()>& work) const { work(); }

  virtual StreamOrder order(Stream stream) const noexcept { return {stream.handle, 0}; }
  /// Whether work that is put on `stream` now is recorded instead of done, or would disturb a
  /// recording.
  virtual bool capturing(Stream /*stream*/) const { return false; }
  /// Null where nothing is ever captured.
  virtual Graphs* graphs() noexcept { return nullptr; }

  /// Null where no other rank can reach this device's memory.
  virtual PeerAccess* peer_access() noexcept { return nullptr; }

  /// Waits for all work submitted to `stream`; reports a failure of that work.
  virtual void synchronize(Stream stream) = 0;

  /// A stream of the device's own for measuring; lives as long as the device.
  virtual Stream tuning_stream() = 0;

  /// Seconds from just before to just after the work that `enqueue` puts on `stream`, by the
  /// device's own clock (events; host: steady clock). Waits for it.
  virtual double time(Stream stream, const std::function<void()>& enqueue) = 0;

  /// Times intervals within other work, where `time` would have to wait. A stream that is being
  /// captured cannot be timed this way.
  virtual std::unique_ptr<Stopwatch> stopwatch() { return std::make_unique<HostStopwatch>(); }

  /// Records what `enqueue` puts on `stream`, without running it. Null where the device cannot,
  /// where the driver refuses, where `enqueue` throws a std::exception (it would throw again when
  /// it is called plainly) or puts nothing there: use plain launches then.
  virtual std::unique_ptr<Replay> capture(Stream /*stream*/,
                                          const std::function<void()>& /*enqueue*/) {
    return nullptr;
  }

  /// The compiler of this device, if it is not the usual one of its target; else null.
  virtual std::shared_ptr<codegen::Compiler> compiler() const { return nullptr; }

  /// True when the failure was not an ordinary refusal, and the device no longer works in this
  /// process. Waits for the tuning stream.
  virtual bool lost() noexcept { return false; }

  /// True when compiling on the CPU disturbs what is timed here.
  virtual bool shares_cpu() const noexcept = 0;

  /// What load_counted() has loaded here.
  const std::shared_ptr<LoadedModules>& loaded_modules() const noexcept { return loaded_modules_; }

 private:
  [[noreturn]] void no_maps() const {
    throw EnvironmentError("device " + info().id + " has no tensor maps");
  }

  std::shared_ptr<LoadedModules> loaded_modules_ = std::make_shared<LoadedModules>();
  std::atomic<std::uint64_t> reserve_{0};
};

/// Owner of device memory. Move-only; keeps its device alive.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(std::shared_ptr<Device> device, std::size_t bytes)
      : device_(std::move(device)),
        data_(bytes ? device_->allocate(bytes) : nullptr),
        bytes_(bytes) {}
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    DeviceMemory(std::move(other)).swap(*this);
    return *this;
  }
  ~DeviceMemory() {
    if (data_) device_->release(data_, bytes_);
  }

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  const std::shared_ptr<Device>& device() const noexcept { return device_; }
  void swap(DeviceMemory& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

 private:
  std::shared_ptr<Device> device_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace kiln::runtime
