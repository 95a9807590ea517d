// Internal: digests of arrays in device memory, computed there. Includes cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/device/cuda/cuda_objects.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// A kernel that computes what array_digest() does, loaded. Safe to use from several threads, which
/// take turns.
class CudaDigest {
 public:
  /// Loads the kernel, and tries it on data whose digest is known.
  /// Its memory is the device's, which must outlive it.
  /// @throws EnvironmentError when the driver cannot compile it, or it computes something else
  CudaDigest(std::shared_ptr<const CudaContext> context, Device& device);

  /// Digests `count` arrays of `bytes` bytes each, `stride` bytes apart, after the work on
  /// `stream`, and waits for it. @pre memory and stride are multiples of 8, bytes > 0
  /// @throws EnvironmentError when the driver refuses
  std::vector<std::uint64_t> operator()(CUdeviceptr memory, std::size_t bytes, std::size_t stride,
                                        std::size_t count, CUstream stream);

 private:
  class Memory {
   public:
    Memory(Device& device, std::size_t bytes)
        : device_(device), bytes_(bytes), data_(device.allocate(bytes)) {}
    ~Memory() { device_.release(data_, bytes_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    std::size_t bytes() const noexcept { return bytes_; }
    CUdeviceptr get() const noexcept { return reinterpret_cast<CUdeviceptr>(data_); }

   private:
    Device& device_;
    std::size_t bytes_;
    void* data_;
  };

  std::shared_ptr<const CudaContext> context_;
  Device& device_;
  const unsigned multiprocessors_;
  CudaModule module_;
  CUfunction function_ = nullptr;
  std::mutex mutex_;  ///< of the sums
  std::unique_ptr<Memory> sums_;
};

}  // namespace kiln::runtime
