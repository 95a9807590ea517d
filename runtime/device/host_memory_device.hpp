// What the host and recorded spaces share as devices: their memory is the host's, and their work is
// done when the call returns.
#pragma once

#include <cstddef>

#include "runtime/device/device.hpp"

namespace kiln::runtime {

class HostMemoryDevice : public Device {
 public:
  /// Memory that std::free releases.
  void* allocate(std::size_t bytes) override;
  void release(void* memory, std::size_t bytes) noexcept override;
  void copy_to_device(void* to, const void* from, std::size_t bytes) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes) override;
  void copy_on_device(void* to, const void* from, std::size_t bytes, Stream) override;
  /// Launches of several threads run at the same time, on whatever stream.
  StreamOrder order(Stream stream) const noexcept override {
    return {stream.handle, StreamOrder::this_running_thread()};
  }
  void fill(void* memory, std::byte value, std::size_t bytes, Stream) override;
};

}  // namespace kiln::runtime
