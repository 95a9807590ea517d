#include "kiln/runtime.hpp"

#include "kiln/detail/format.hpp"
#include "runtime/devices.hpp"
#include "runtime/engine.hpp"

namespace kiln {

namespace {

std::shared_ptr<detail::Engine> open(RuntimeOptions options) {
  auto device = runtime::open_device(options.device, options.log);
  return std::make_shared<detail::Engine>(std::move(options), device, [device](Target::Kind kind) {
    auto own = device->compiler();
    return own ? own : runtime::make_compiler(kind);
  });
}

}  // namespace

Runtime::Runtime() : Runtime(RuntimeOptions{}) {}

Runtime::Runtime(RuntimeOptions options) : Runtime(open(std::move(options))) {}

Runtime::Runtime(std::shared_ptr<detail::Engine> engine) : engine_(std::move(engine)) {}

const DeviceInfo& Runtime::device() const noexcept { return engine_->device()->info(); }

void Runtime::synchronize(Stream stream) const { engine_->device()->synchronize(stream); }

RuntimeStatistics Runtime::statistics() const { return engine_->statistics(); }

Manifest Runtime::wanted() const { return engine_->wanted(); }

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
