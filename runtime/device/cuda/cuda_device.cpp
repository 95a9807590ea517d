#include "runtime/device/cuda/cuda_device.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "codegen/resource_report.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/cuda/cuda_kernel.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"
#include "runtime/device/cuda/digest.hpp"
#include "runtime/device/cuda/launch.hpp"
#include "runtime/device/cuda/peer_access.hpp"
#include "runtime/device/cuda/program_graphs.hpp"
#include "runtime/device/cuda/properties.hpp"
#include "runtime/device/resource_check.hpp"

namespace kiln::runtime {
namespace {

/// Large allocations consist of pages of this size; small allocations share a page.
constexpr std::size_t kGranularity = std::size_t{2} << 20;

class CudaReplay final : public Replay {
 public:
  explicit CudaReplay(CudaGraphExec exec) : exec_(std::move(exec)) {}

  void run(Stream stream) override {
    const CudaContext& context = *exec_.context();
    const CurrentContext current(context);
    context.driver().check(
        context.driver().GraphLaunch(exec_.get(), static_cast<CUstream>(stream.handle)),
        "cuGraphLaunch");
  }

 private:
  CudaGraphExec exec_;
};

class CudaStopwatch final : public Stopwatch {
 public:
  explicit CudaStopwatch(const std::shared_ptr<const CudaContext>& context)
      : start_(create_timing_event(context)), stop_(create_timing_event(context)) {}

  void start(Stream stream) override { record(start_, stream); }
  void stop(Stream stream) override { record(stop_, stream); }

  double seconds() override {
    const WorkingContext working(*stop_.context());
    const DriverTable& driver = stop_.context()->driver();
    driver.check(driver.EventSynchronize(stop_.get()), "cuEventSynchronize");
    float milliseconds = 0;
    driver.check(driver.EventElapsedTime(&milliseconds, start_.get(), stop_.get()),
                 "cuEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  static void record(const CudaEvent& event, Stream stream) {
    const CurrentContext current(*event.context());
    const DriverTable& driver = event.context()->driver();
    driver.check(driver.EventRecord(event.get(), static_cast<CUstream>(stream.handle)),
                 "cuEventRecord");
  }

  CudaEvent start_, stop_;
};

/// Ends a stream's capture, whatever happens in between.
class StreamCapture {
 public:
  StreamCapture(const DriverTable& driver, CUstream stream) : driver_(driver), stream_(stream) {
    // Of this thread alone: other threads may go on allocating and loading.
    capturing_ =
        driver_.StreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS;
  }
  ~StreamCapture() {
    end();
    if (graph_) driver_.GraphDestroy(graph_);
  }
  StreamCapture(const StreamCapture&) = delete;
  StreamCapture& operator=(const StreamCapture&) = delete;

  explicit operator bool() const noexcept { return capturing_; }
  /// Null when the capture failed on the way.
  CUgraph take() noexcept {
    end();
    return std::exchange(graph_, nullptr);
  }

 private:
  void end() noexcept {
    if (!std::exchange(capturing_, false)) return;
    if (driver_.StreamEndCapture(stream_, &graph_) != CUDA_SUCCESS) graph_ = nullptr;
  }

  const DriverTable& driver_;
  CUstream stream_;
  CUgraph graph_ = nullptr;
  bool capturing_ = false;
};

CUstream native(Stream stream) { return static_cast<CUstream>(stream.handle); }
CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<const DriverTable> driver, int ordinal, int reserved_multiprocessors,
             CallerAllocator allocator)
      : allocator_(std::move(allocator)),
        context_(std::make_shared<const CudaContext>(std::move(driver), ordinal)),
        driver_(context_->driver()),
        info_(read_device_info(*context_, ordinal, reserved_multiprocessors)),
        tuning_stream_(create_stream(context_)),
        graphs_(context_),
        peer_access_(make_cuda_peer_access(context_)) {}

  const DeviceInfo& info() const noexcept override { return info_; }

  std::shared_ptr<Module> load(const codegen::Binary& binary, const Launch& launch,
                               std::span<const Launch> steps) override {
    if (binary.target.kind != Target::Kind::cuda) {
      throw UserError(detail::format("a binary for {} cannot be loaded on {} ({})",
                                     binary.target.arch, info_.id, info_.target.arch));
    }
    if (binary.steps.size() != steps.size())
      throw InternalError(
          detail::format("a binary with {} steps is loaded for {} launches of steps",
                         binary.steps.size(), steps.size()));
    const WorkingContext working(*context_);
    CudaModule module = load_module(context_, binary.code);
    std::vector<CudaKernel> loaded_steps;
    for (std::size_t i = 0; i < binary.steps.size(); ++i)
      loaded_steps.push_back(
          entry_of(module.get(), binary.steps[i], empty(steps[i]) ? Launch{} : steps[i]));
    const CudaKernel own = entry_of(module.get(), {binary.symbol, binary.resources}, launch);
    return std::make_shared<CudaKernel>(std::move(module), own.function(), own.resources(),
                                        codegen::read_cubin_variables(binary.code),
                                        std::move(loaded_steps));
  }

  std::vector<ModuleVariable> variables(const Module& kernel) const override {
    const auto& loaded = static_cast<const CudaKernel&>(kernel);
    const WorkingContext working(*context_);
    std::vector<ModuleVariable> found;
    for (const codegen::CubinVariable& v : loaded.variables()) {
      CUdeviceptr at = 0;
      std::size_t bytes = 0;
      const CUresult result =
          driver_.ModuleGetGlobal(&at, &bytes, loaded.module(), v.symbol.c_str());
      if (result == CUDA_ERROR_NOT_FOUND) continue;  // the compiler's own
      driver_.check(result, "cuModuleGetGlobal");
      found.push_back({v.name, reinterpret_cast<void*>(at), bytes});
    }
    return found;
  }

  void launch(const Module& kernel, const Launch& g, Stream stream, void** args) const override {
    if (g.grid.x == 0 || g.grid.y == 0 || g.grid.z == 0) return;
    if (has_attributes(g)) return LaunchByConfig(*context_, function_of(kernel), g)(stream, args);
    in_context(*context_, "cuLaunchKernel", [&] {
      return driver_.LaunchKernel(function_of(kernel), g.grid.x, g.grid.y, g.grid.z, g.block.x,
                                  g.block.y, g.block.z, g.shared_bytes, native(stream), args,
                                  nullptr);
    });
  }
  std::shared_ptr<const detail::BoundLaunch> fixed(const Module& kernel, const Launch& g,
                                                   EntryArguments arguments) const override {
    if (driver_.LaunchKernelEx && !empty(g))
      return std::make_shared<const CudaFixedLaunch>(std::move(arguments), *context_,
                                                     function_of(kernel), g);
    return Device::fixed(kernel, g, std::move(arguments));
  }

  EncodedMap encode(const TensorMap& map, void* address) const override {
    const CurrentContext current(*context_);  // the driver refuses without one
    return encode_map(driver_, map, address);
  }
  void move(EncodedMap& map, void* address) const override {
    const CurrentContext current(*context_);
    move_map(driver_, map, address);
  }

  int occupancy(const Module& kernel, int threads, unsigned shared_bytes) const override {
    const CurrentContext current(*context_);
    int blocks = 0;
    const CUresult result = driver_.OccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, function_of(kernel), threads, shared_bytes);
    if (result == CUDA_ERROR_INVALID_VALUE) return 0;  // more threads than a block can have
    driver_.check(result, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    return blocks;
  }

  void within(const std::function<void()>& work) const override {
    const WorkingContext working(*context_);
    work();
  }

  std::optional<std::int64_t> available() const override {
    if (allocator_) return allocator_.available();
    const WorkingContext working(*context_);
    std::size_t free = 0, total = 0;
    if (!driver_.MemGetInfo || driver_.MemGetInfo(&free, &total) != CUDA_SUCCESS) return {};
    return static_cast<std::int64_t>(free);
  }
  std::size_t granularity() const noexcept override { return allocator_ ? 1 : kGranularity; }
  void* allocate(std::size_t bytes) override {
    if (!allocator_) return reinterpret_cast<void*>(allocate_memory(context_, bytes).release());
    const WorkingContext working(*context_);
    return allocator_.allocate(bytes);
  }
  void release(void* memory, std::size_t bytes) noexcept override {
    if (!allocator_) {
      CudaMemory(context_, address(memory));
      return;
    }
    const WorkingContext working(*context_, std::nothrow);
    {
      const std::lock_guard lock(own_work_);
      // The driver would wait for all work. What the program launched is for it to wait for.
      driver_.StreamSynchronize(tuning_stream_.get());
    }
    // The program may wait for a lock whose owner waits for this one.
    allocator_.release(memory, bytes);
  }

  void copy_to_device(void* to, const void* from, std::size_t bytes) override {
    const WorkingContext working(*context_);
    const std::lock_guard lock(own_work_);
    driver_.check(driver_.MemcpyHtoDAsync(address(to), from, bytes, tuning_stream_.get()),
                  "cuMemcpyHtoDAsync");
    wait(tuning_stream_.get());
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override {
    const WorkingContext working(*context_);
    const std::lock_guard lock(own_work_);
    driver_.check(driver_.MemcpyDtoHAsync(to, address(from), bytes, tuning_stream_.get()),
                  "cuMemcpyDtoHAsync");
    wait(tuning_stream_.get());
  }
  std::vector<std::uint64_t> digests(const void* memory, std::size_t bytes, std::size_t stride,
                                     std::size_t count) override {
    if (bytes == 0 || count == 0 || address(memory) % 8 != 0 || stride % 8 != 0) return {};
    std::call_once(digest_once_, [this] {
      try {
        digest_ = std::make_unique<CudaDigest>(context_, *this);
      } catch (const EnvironmentError&) {
        // Downloads show it as well, only later.
      }
    });
    if (!digest_) return {};
    const std::lock_guard lock(own_work_);
    try {
      return (*digest_)(address(memory), bytes, stride, count, tuning_stream_.get());
    } catch (const EnvironmentError&) {
      return {};  // no memory for the sums; if it is worse than that, the downloads will show it
    }
  }
  void copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream) override {
    const CurrentContext current(*context_);
    driver_.check(driver_.MemcpyDtoDAsync(address(to), address(from), bytes, native(stream)),
                  "cuMemcpyDtoDAsync");
  }
  void fill(void* memory, std::byte value, std::size_t bytes, Stream stream) override {
    const CurrentContext current(*context_);
    driver_.check(driver_.MemsetD8Async(address(memory), std::to_integer<unsigned char>(value),
                                        bytes, native(stream)),
                  "cuMemsetD8Async");
  }

  StreamOrder order(Stream stream) const noexcept override {
    const bool per_thread = native(stream) == CU_STREAM_PER_THREAD;
    return {stream.handle, per_thread ? StreamOrder::this_thread() : 0};
  }
  bool capturing(Stream stream) const override {
    if (!driver_.StreamIsCapturing) return false;
    const CurrentContext current(*context_);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = driver_.StreamIsCapturing(native(stream), &status);
    // This is the default stream, and a stream that waits for it is being captured.
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
    driver_.check(result, "cuStreamIsCapturing");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }

  Graphs* graphs() noexcept override { return &graphs_; }

  void synchronize(Stream stream) override {
    const WorkingContext working(*context_);
    wait(native(stream));
  }

  Stream tuning_stream() override { return view(tuning_stream_); }

  double time(Stream stream, const std::function<void()>& enqueue) override {
    const WorkingContext working(*context_);
    CudaStopwatch watch(context_);
    watch.start(stream);
    enqueue();
    watch.stop(stream);
    return watch.seconds();
  }

  std::unique_ptr<Stopwatch> stopwatch() override {
    return std::make_unique<CudaStopwatch>(context_);
  }

  std::unique_ptr<Replay> capture(Stream stream, const std::function<void()>& enqueue) override {
    if (!driver_.has_graphs()) return nullptr;
    const WorkingContext working(*context_);
    std::unique_lock lock(own_work_, std::defer_lock);
    if (native(stream) == tuning_stream_.get()) lock.lock();
    CudaGraph graph;
    {
      StreamCapture capture(driver_, native(stream));
      if (!capture) return nullptr;
      bool enqueued = false;
      try {
        enqueue();
        enqueued = true;
      } catch (const std::exception&) {
      }
      graph = CudaGraph(context_, capture.take());
      if (!enqueued || !graph) return nullptr;
    }
    if (lock) lock.unlock();
    std::size_t nodes = 0;
    CUgraphExec exec = nullptr;
    if (driver_.GraphGetNodes(graph.get(), nullptr, &nodes) != CUDA_SUCCESS || nodes == 0 ||
        driver_.GraphInstantiateWithFlags(&exec, graph.get(), 0) != CUDA_SUCCESS)
      return nullptr;
    return std::make_unique<CudaReplay>(CudaGraphExec(context_, exec));
  }

  // Once a kernel has broken the context, every call reports it.
  bool lost() noexcept override {
    const WorkingContext working(*context_, std::nothrow);
    const std::lock_guard lock(own_work_);
    return driver_.StreamSynchronize(tuning_stream_.get()) != CUDA_SUCCESS;
  }

  bool shares_cpu() const noexcept override { return false; }

  PeerAccess* peer_access() noexcept override { return peer_access_.get(); }

 private:
  int attribute(CUfunction function, CUfunction_attribute which) const {
    int value = 0;
    driver_.check(driver_.FuncGetAttribute(&value, which, function), "cuFuncGetAttribute");
    return value;
  }

  void wait(CUstream stream) const {
    driver_.check(driver_.StreamSynchronize(stream), "cuStreamSynchronize");
  }

  CudaKernel entry_of(CUmodule module, const codegen::BinaryEntry& entry,
                      const Launch& launch) const {
    CUfunction function = nullptr;
    driver_.check(driver_.ModuleGetFunction(&function, module, entry.symbol.c_str()),
                  "cuModuleGetFunction");
    // Loading is lazy by default; a first launch should not pay for it.
    if (driver_.FuncLoad) driver_.check(driver_.FuncLoad(function), "cuFuncLoad");

    codegen::ResourceUsage usage = entry.resources;  // spills are known to the compiler alone
    usage.registers = attribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS);
    usage.stack = attribute(function, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
    usage.static_shared = attribute(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    usage.max_threads = attribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    check_shared(entry.symbol, usage.static_shared, launch.shared_bytes);
    prepare_function(driver_, function, usage.static_shared, launch, info_.limits);
    return {function, usage};
  }

  void check_shared(const std::string& symbol, int fixed, unsigned dynamic) const {
    const std::int64_t total = std::int64_t{fixed} + dynamic;
    if (total > info_.limits.shared_per_block_optin)
      throw UserError(detail::format(
          "{} needs {} bytes of shared memory per block ({} static, {} dynamic); {} has {}", symbol,
          total, fixed, dynamic, info_.name, info_.limits.shared_per_block_optin));
  }

  const CallerAllocator allocator_;
  std::shared_ptr<const CudaContext> context_;
  const DriverTable& driver_;
  DeviceInfo info_;
  CudaStream tuning_stream_;
  /// Held while the tuning stream is captured, and by what would end up in that graph otherwise: a
  /// program's threads copy arrays on that stream, too. Recursive, because what is captured may
  /// copy; the driver refuses that.
  std::recursive_mutex own_work_;
  ProgramGraphs graphs_;
  const std::unique_ptr<PeerAccess> peer_access_;
  std::once_flag digest_once_;
  std::unique_ptr<CudaDigest> digest_;
};

}  // namespace

CudaProbe probe_cuda() {
  CudaProbe probe;
  DriverProbe opened = open_driver();
  probe.driver = std::move(opened.driver);
  probe.reason = std::move(opened.reason);
  if (!probe.driver) return probe;
  const DriverTable& driver = *probe.driver;
  int version = 0;
  if (driver.DriverGetVersion(&version) == CUDA_SUCCESS)
    probe.driver_version = version_text(version);
  const CUresult result = driver.DeviceGetCount(&probe.devices);
  if (result != CUDA_SUCCESS) {
    probe.devices = 0;
    probe.reason = driver.describe(result, "cuDeviceGetCount");
  } else if (probe.devices == 0) {
    probe.reason = "the driver shows no device: check nvidia-smi and CUDA_VISIBLE_DEVICES";
  }
  return probe;
}

std::shared_ptr<Device> make_cuda_device(std::shared_ptr<const DriverTable> driver, int ordinal,
                                         int reserved_multiprocessors, CallerAllocator allocator) {
  return std::make_shared<CudaDevice>(std::move(driver), ordinal, reserved_multiprocessors,
                                      std::move(allocator));
}

}  // namespace kiln::runtime
