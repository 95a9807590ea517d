// The roofline's kernels as typed kernels, and the problems they are timed on.
#pragma once

#include "kiln/kernel.hpp"
#include "templates/roofline/roofline.hpp"

namespace kiln::templates {

using CopyKernel = Kernel<RooflineCopy, CopyProblem, void(float*, const float*, long long)>;
using FmaKernel = Kernel<RooflineFma, FmaProblem, void(float*, const float*, long long, int)>;
using MmaKernel =
    Kernel<RooflineMma, MmaProblem, void(float*, const bfloat16*, const bfloat16*, long long, int)>;

CopyKernel copy_kernel();
FmaKernel fma_kernel();
/// For compute capabilities from 8.0 on.
MmaKernel mma_kernel();

/// Both arrays together four times the last-level cache, from 128 (a GPU: 512) to 512 MB, or what a
/// small device can spare.
CopyProblem copy_problem(const DeviceInfo& device);
FmaProblem fma_problem(const DeviceInfo& device);
MmaProblem mma_problem(const DeviceInfo& device);

}  // namespace kiln::templates
