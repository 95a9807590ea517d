// A workload on a device: the arguments of tuning launches, and whether their outputs are right.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kiln/definition.hpp"
#include "runtime/device.hpp"
#include "runtime/verify.hpp"

namespace kiln::runtime {

/// Not thread-safe.
class DeviceWorkload {
 public:
  /// Makes the data and uploads it. @throws UserError when the kernel's `workload` does not fit its
  /// signature, EnvironmentError when the device has too little memory.
  DeviceWorkload(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                 std::shared_ptr<Device> device, std::uint64_t seed);

  /// Argument addresses, as Device::launch takes them.
  void** arguments() noexcept { return addresses_.data(); }
  bool has_in_out() const noexcept { return has_in_out_; }

  /// Restores in/out arrays: what a measured launch needs before it.
  void restore(Stream stream);

  struct Verdict {
    bool right = true;
    double max_error = 0;
    std::string why;
  };
  /// Poisons the outputs, has `launch` enqueue the kernel on `stream`, and compares what it wrote
  /// with what it should. Without a reference the first kernel whose outputs are all written
  /// defines that, by two launches. Waits for the device.
  Verdict verify(Stream stream, const std::function<void()>& launch);

 private:
  struct Array {
    std::size_t argument = 0;
    DeviceMemory memory;
    DeviceMemory pristine;  ///< of in/out arrays
    void* address = nullptr;
    std::byte poison{0xff};
  };

  void run(Stream stream, const std::function<void()>& launch);
  void choose_poison();
  Verdict judge();

  const KernelDefinition& kernel_;
  std::shared_ptr<Device> device_;
  Workload host_;  ///< after construction the outputs hold what is expected
  bool expected_known_ = false;
  bool has_in_out_ = false;
  std::vector<Array> arrays_;
  std::vector<void*> addresses_;
};

}  // namespace kiln::runtime
