// What stands behind a region that is being tuned. Implemented by the runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kiln/device.hpp"

namespace kiln::detail {

class FunctionCore;
class FunctionHandles;
class TunableHandle;

/// One launch in a region.
struct RegionLaunch {
  TunableHandle& handle;
  std::span<const std::int64_t> bucket;   ///< of the problem
  std::span<const std::int64_t> problem;  ///< that is launched
  Stream stream;
  void** args;
};

class RegionCore {
 public:
  virtual ~RegionCore() = default;
  virtual void launch(const RegionLaunch& launch) = 0;
};

}  // namespace kiln::detail
