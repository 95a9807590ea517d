#include "runtime/device/host_memory_device.hpp"

#include <cstdlib>
#include <cstring>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

void* HostMemoryDevice::allocate(std::size_t bytes) {
  if (void* memory = std::malloc(bytes)) return memory;
  throw EnvironmentError(
      kiln::detail::format("malloc: {} bytes of memory cannot be allocated", bytes));
}
void HostMemoryDevice::release(void* memory, std::size_t) noexcept { std::free(memory); }
void HostMemoryDevice::copy_to_device(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
void HostMemoryDevice::copy_to_host(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
void HostMemoryDevice::copy_on_device(void* to, const void* from, std::size_t bytes, Stream) {
  std::memcpy(to, from, bytes);
}
void HostMemoryDevice::fill(void* memory, std::byte value, std::size_t bytes, Stream) {
  std::memset(memory, std::to_integer<int>(value), bytes);
}

}  // namespace kiln::runtime
