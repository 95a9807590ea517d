// Internal: a kernel that the driver has loaded. Includes cuda.h.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "codegen/resource_report.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

class CudaKernel final : public Module {
 public:
  CudaKernel(CudaModule module, CUfunction function, codegen::ResourceUsage resources,
             std::vector<codegen::CubinVariable> variables, std::vector<CudaKernel> steps)
      : module_(std::move(module)),
        function_(function),
        resources_(resources),
        variables_(std::move(variables)),
        steps_(std::move(steps)) {}
  /// A step, whose module another kernel owns.
  CudaKernel(CUfunction function, codegen::ResourceUsage resources)
      : function_(function), resources_(resources) {}

  const codegen::ResourceUsage& resources() const noexcept override { return resources_; }
  const Module& step(std::size_t index) const override { return steps_.at(index); }
  bool has_variables() const noexcept override { return !variables_.empty(); }
  CUfunction function() const noexcept { return function_; }
  CUmodule module() const noexcept { return module_.get(); }
  const std::vector<codegen::CubinVariable>& variables() const noexcept { return variables_; }

 private:
  CudaModule module_;
  CUfunction function_;
  codegen::ResourceUsage resources_;
  std::vector<codegen::CubinVariable> variables_;
  std::vector<CudaKernel> steps_;
};

inline CUfunction function_of(const Module& kernel) {
  return static_cast<const CudaKernel&>(kernel).function();
}

}  // namespace kiln::runtime
