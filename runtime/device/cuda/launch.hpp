// Internal: launches with attributes, and tensor maps, as the driver takes them. Includes cuda.h.
#pragma once

#include <array>

#include "runtime/device/cuda/cuda_objects.hpp"
#include "runtime/device/cuda/driver.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/entry_arguments.hpp"

namespace kiln::runtime {

/// Whether a launch is more than a grid and a block.
inline bool has_attributes(const Launch& launch) noexcept {
  return launch.cluster != Dim3{} || launch.cooperative || launch.programmatic;
}

/// What a function must be told once so that it can be launched like this.
/// @param static_shared the function's own shared memory, in bytes
/// @throws UserError when the device cannot hold one cluster, EnvironmentError when the driver
/// refuses
void prepare_function(const DriverTable& driver, CUfunction function, int static_shared,
                      const Launch& launch, const DeviceLimits& limits);

/// What in_context() does once the driver has refused.
template <class Call>
void again_in_context(CUresult refused, const CudaContext& context, const char* name,
                      const Call& call) {
  // The program may have destroyed the context that it left current.
  if (refused != CUDA_ERROR_INVALID_CONTEXT && refused != CUDA_ERROR_INVALID_HANDLE &&
      refused != CUDA_ERROR_CONTEXT_IS_DESTROYED)
    context.driver().check(refused, name);
  const CurrentContext current(context);
  context.driver().check(call(), name);
}

/// Makes a call that puts work on a stream, and again in `context` when the driver wants another
/// context to be current. A stream of its own belongs to a context, whichever is current; asking
/// before each launch costs about 8 ns.
/// @throws EnvironmentError when the driver refuses both
template <class Call>
void in_context(const CudaContext& context, const char* name, const Call& call) {
  const CUresult result = call();
  if (result != CUDA_SUCCESS) [[unlikely]]
    again_in_context(result, context, name, call);
}

/// A launch as cuLaunchKernelEx and the occupancy of clusters take it.
class LaunchConfig {
 public:
  LaunchConfig(const Launch& launch, CUstream stream);
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  const CUlaunchConfig* get() const noexcept { return &config_; }

 private:
  CUlaunchAttribute& add(CUlaunchAttributeID id);

  CUlaunchConfig config_{};
  std::array<CUlaunchAttribute, 3> attributes_;  // those that are added
};

/// By cuLaunchKernelEx. Takes no lock and allocates nothing.
class LaunchByConfig {
 public:
  /// @throws EnvironmentError when the driver does not know the call
  LaunchByConfig(const CudaContext& context, CUfunction function, const Launch& launch);
  void operator()(Stream stream, void** args) const {
    const CUresult result = once(stream, args);
    if (result != CUDA_SUCCESS) [[unlikely]]
      again(result, stream, args);
  }

 private:
  CUresult once(Stream stream, void** args) const {
    CUlaunchConfig config = *config_.get();
    config.hStream = static_cast<CUstream>(stream.handle);
    return launch_(&config, function_, args, nullptr);
  }
  void again(CUresult refused, Stream stream, void** args) const;

  const CudaContext& context_;
  decltype(&::cuLaunchKernelEx) launch_;
  CUfunction function_;
  LaunchConfig config_;
};

/// As Device::fixed, by cuLaunchKernelEx: one function, and few cache lines, in front of the
/// driver's.
class CudaFixedLaunch final : public detail::BoundLaunch {
 public:
  CudaFixedLaunch(EntryArguments arguments, const CudaContext& context, CUfunction function,
                  const Launch& launch)
      : arguments_(std::move(arguments)), launch_(context, function, launch) {}
  void operator()(const Launch& launch, Stream stream, void** args) const override;
  void take(const Launch& launch, Stream stream, void** args) const override;

 private:
  const EntryArguments arguments_;
  const LaunchByConfig launch_;
};

/// As Device::encode and Device::move.
EncodedMap encode_map(const DriverTable& driver, const TensorMap& map, void* address);
void move_map(const DriverTable& driver, EncodedMap& map, void* address);

}  // namespace kiln::runtime
