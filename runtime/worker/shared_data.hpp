// The data of a problem's trials in a memory file, for processes that are started with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/worker/messages.hpp"

namespace kiln::runtime {

/// Arrays are too large for messages: a matrix of 4096 x 14336 has 117 MB. Only the process that
/// made it can write. Not thread-safe.
class SharedData {
 public:
  /// Copies all arguments. @throws EnvironmentError when there is no memory for it
  explicit SharedData(const std::vector<KernelData>& draws);
  ~SharedData();
  SharedData(const SharedData&) = delete;
  SharedData& operator=(const SharedData&) = delete;

  /// Open for reading; above 2.
  int descriptor() const noexcept { return reading_; }
  std::uint64_t bytes() const noexcept { return size_; }
  const std::vector<std::vector<ArgumentPlace>>& places() const noexcept { return places_; }

  /// @throws EnvironmentError when there is no memory for it
  void write(std::uint64_t place, std::span<const std::byte> bytes);
  void read(std::uint64_t place, std::span<std::byte> bytes) const;

 private:
  void make(const std::vector<KernelData>& draws);
  void close() noexcept;

  int writing_ = -1, reading_ = -1;
  std::uint64_t size_ = 0;
  std::vector<std::vector<ArgumentPlace>> places_;
};

/// @throws EnvironmentError
void read_all(int descriptor, std::uint64_t place, std::span<std::byte> bytes);

}  // namespace kiln::runtime
