// The GEMM of 8-bit floats with one scale for each operand as a choice (kiln/choice.hpp): cuBLASLt,
// whose first answer is the default, and the kernel of gemm_fp8.hpp with its whole space,
// `template`. Switches name it `gemm_fp8`, however it sums: KILN_BACKENDS_GEMM_FP8=-cublaslt.
//
//   auto gemm = kiln::tuned(runtime, kiln::templates::gemm_fp8_choice<>());
//   gemm(stream, c, a, b, m, n, k, scale_a, scale_b);  // C = scale_a * scale_b * A * B^T
//
// C, A and B must be aligned to 16 bytes. cuBLASLt takes part on GPUs of compute capability 8.9 or
// above, where k is a multiple of 16 and n of 8; otherwise the kernel alone does. With
// Fp8Sums::exact cuBLASLt is asked for sums without fast accumulation, with Fp8Sums::fast for those
// with it. The kernels with scales of rows and of blocks are no choices: what cuBLASLt does with
// such scales depends on its version and the GPU.
#pragma once

#include "../gemm_choice.hpp"
#include "gemm_fp8.hpp"

namespace kiln::templates {

/// Arguments: C, A, B, m, n, k, scale_a, scale_b.
template <Fp8Sums sums = Fp8Sums::exact>
auto gemm_fp8_choice() {
  return gemm_detail::with_cublaslt<Fp8<bfloat16, sums>, GemmTranspose::nt>(
      gemm_fp8_kernel<epilogue::TensorScales, sums>());
}

}  // namespace kiln::templates
