// As much of OpenCL as a comparison needs: PoCL's CPU device, one kernel of one signature.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels.hpp"

namespace host_against_pocl {

class PoclKernel {
 public:
  virtual ~PoclKernel() = default;
  /// Returns when the launch is done.
  virtual void launch() = 0;
};

class Pocl {
 public:
  virtual ~Pocl() = default;
  virtual std::string version() const = 0;
  /// The kernel over arrays that stay where they are.
  virtual std::unique_ptr<PoclKernel> load(const Case& work, float* out, float* a, float* b) = 0;
};

/// Null where PoCL cannot be used; `reason` says why. What PoCL keeps on disk goes into `folder`.
std::unique_ptr<Pocl> open_pocl(const std::string& folder, std::string& reason);

}  // namespace host_against_pocl
