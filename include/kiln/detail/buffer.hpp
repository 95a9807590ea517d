// Untyped device memory behind an Array. Implemented by the runtime.
#pragma once

#include <cstddef>
#include <memory>

namespace kiln::detail {

class Engine;

class Buffer {
 public:
  Buffer(std::shared_ptr<Engine> engine, std::size_t bytes);
  void* data() const noexcept;
  std::size_t bytes() const noexcept;
  void upload(const void* from, std::size_t bytes);
  void download(void* to, std::size_t bytes) const;

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;
};

}  // namespace kiln::detail
