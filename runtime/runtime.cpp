#include "kiln/runtime.hpp"

#include <charconv>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/background/make_engine.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/host/host_device.hpp"
#include "runtime/recorded/recorded_device.hpp"
#include "runtime/runtime.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/metrics.hpp"
#include "runtime/worker/isolation.hpp"

namespace kiln {

namespace runtime {

namespace {

/// The N of `cuda:N`; -1 for anything else.
int cuda_ordinal(const std::string& name) {
  if (name == "cuda") return 0;
  if (!name.starts_with("cuda:")) return -1;
  int ordinal = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + 5, end, ordinal);
  return error == std::errc{} && stop == end ? ordinal : -1;
}

}  // namespace

std::shared_ptr<Device> open_device(const std::string& name, const LogSink& log,
                                    int reserved_multiprocessors, CallerAllocator allocator) {
  if (name == "host") return make_host_device(std::move(allocator));
  if (name == "auto") {
    const CudaProbe cuda = probe_cuda();
    if (cuda.devices > 0)
      return make_cuda_device(cuda.driver, 0, reserved_multiprocessors, std::move(allocator));
    if (log) log(LogLevel::info, "using the host: " + cuda.reason);
    return make_host_device(std::move(allocator));
  }
  if (name.starts_with("recorded:")) return make_recorded_device(name.substr(9));
  const int ordinal = cuda_ordinal(name);
  if (ordinal < 0)
    throw UserError("unknown device '" + name +
                    "' (known: auto, host, cuda, cuda:N, recorded:FILE)");
  const CudaProbe cuda = probe_cuda();
  if (ordinal >= cuda.devices)
    throw EnvironmentError("device " + name + " does not exist: " +
                           (cuda.devices == 0 ? cuda.reason
                                              : "the driver shows " + std::to_string(cuda.devices) +
                                                    " device(s), numbered from 0"));
  return make_cuda_device(cuda.driver, ordinal, reserved_multiprocessors, std::move(allocator));
}

}  // namespace runtime

namespace {

std::shared_ptr<detail::Engine> open(RuntimeOptions options) {
  options = runtime::with_variables(std::move(options));  // the log is needed now
  // What these make no sense of is refused now, not where it is used.
  const auto make_compiler =
      runtime::compiler_maker(options.compile_processes, options.background_compiles);
  runtime::candidate_seconds(options.tuning.candidate_seconds);
  auto device = runtime::open_device(options.device, options.log, options.reserved_multiprocessors,
                                     runtime::CallerAllocator(options.allocator));
  std::shared_ptr<runtime::Device> background;
  if (const std::string& name = options.background.device;
      !name.empty() && options.mode == Mode::background)
    background = runtime::open_device(name, options.log, options.reserved_multiprocessors,
                                      runtime::CallerAllocator());
  return runtime::make_engine(
      std::move(options), device,
      [device, make_compiler](Target::Kind kind) {
        auto own = device->compiler();
        return own ? own : make_compiler(kind);
      },
      std::move(background));
}

}  // namespace

Runtime::Runtime() : Runtime(RuntimeOptions{}) {}

Runtime::Runtime(RuntimeOptions options) : Runtime(open(std::move(options))) {}

Runtime::Runtime(std::shared_ptr<detail::Engine> engine) : engine_(std::move(engine)) {}

const DeviceInfo& Runtime::device() const noexcept { return engine_->device()->info(); }

void Runtime::synchronize(Stream stream) const { engine_->device()->synchronize(stream); }

void Runtime::retain(Stream stream) const { engine_->captures().retain(stream); }

RefreshResult Runtime::refresh(const InstantiatedGraph& graph) const {
  return engine_->captures().refresh(graph);
}

void Runtime::seal(OnUnprepared unprepared) const {
  engine_->serving().seal(unprepared);
  engine_->builder().finish_builds();  // of searches that have ended
}
void Runtime::seal() const { seal(engine_->options().on_unprepared.value_or(OnUnprepared::serve)); }
void Runtime::unseal() const noexcept { engine_->serving().unseal(); }
bool Runtime::sealed() const noexcept { return engine_->serving().sealed().has_value(); }

RuntimeStatistics Runtime::statistics() const { return runtime::statistics_of(*engine_); }

RuntimeMetrics Runtime::metrics() const { return runtime::metrics_of(*engine_); }

Manifest Runtime::wanted() const { return engine_->wanted().all(engine_->serving()); }

namespace detail {

struct Buffer::Memory {
  std::shared_ptr<Engine> engine;
  runtime::DeviceMemory memory;
};

Buffer::Buffer(std::shared_ptr<Engine> engine, std::size_t bytes) {
  auto device = engine->device();
  memory_ = std::make_shared<Memory>(
      Memory{std::move(engine), runtime::DeviceMemory(std::move(device), bytes)});
}

void* Buffer::data() const noexcept { return memory_->memory.data(); }
std::size_t Buffer::bytes() const noexcept { return memory_->memory.bytes(); }

void Buffer::upload(const void* from, std::size_t count) {
  if (count > bytes())
    throw UserError(format("upload of {} bytes into an array of {}", count, bytes()));
  if (count) memory_->memory.device()->copy_to_device(data(), from, count);
}

void Buffer::download(void* to, std::size_t count) const {
  memory_->memory.device()->synchronize({});
  if (count) memory_->memory.device()->copy_to_host(to, data(), count);
}

}  // namespace detail

}  // namespace kiln
