// What shipped kernels say of the bits that their configs compute.

#include <stdexcept>
#include <string>
#include <vector>

#include "kiln/registry.hpp"
#include "kiln/runtime.hpp"
#include "kiln_test.hpp"
#include "same_bits.hpp"
#include "templates/kernels.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

struct Case {
  const char* kernel;
  Values problem;
  bool alone = false;  ///< no other config has the untuned one's bits on an H200
};

Runtime gpu() {
  RuntimeOptions options;
  options.device = "cuda";
  options.store.disk = false;
  return Runtime(options);
}

std::vector<std::string> types_of(const std::string& name) {
  const Registry registry = shipped_kernels();
  for (const RegisteredKernel& kernel : registry.kernels())
    if (kernel.name == name) return kernel.types;
  throw std::runtime_error("no kernel " + name);
}

}  // namespace

TEST_CASE("configs of one name of numerics compute the same bits on the GPU",
          "[gpu][templates][numerics]") {
  const Runtime runtime = gpu();
  for (const Case& c :
       std::vector<Case>{{"vector_add", {262144}},
                         {"residual_add", {64, 1000}},
                         {"gelu_tanh_mul", {64, 4096}},
                         {"silu_mul_fp8_rows", {64, 4096}},
                         {"gelu_mul_fp8_blocks", {63, 4096}},
                         {"gelu_tanh_mul_fp8_tensor", {63, 4096}},
                         {"rmsnorm", {2048, 4096}},
                         {"rmsnorm_residual", {2048, 4096}},
                         {"rmsnorm_fp8", {2048, 4096}},
                         {"rmsnorm_fp8_blocks", {2048, 4096}, true},
                         {"rmsnorm_residual_fp8", {2048, 4096}, true},
                         {"layernorm", {2048, 4096}},
                         {"softmax", {2048, 5000}},
                         {"cross_entropy", {2048, 5000}},
                         {"quantize_rows", {64, 1001}},
                         {"quantize_blocks", {63, 1000}},
                         {"quantize_tensor", {63, 1001}},
                         {"quantize_tensor_dynamic", {63, 1001}},
                         {"quantize_blocks_masked", {63, 1000, 5}},
                         {"quantize_weights", {300, 1000, 3}},
                         {"rope_norm", {2048, 8, 2, 128, 96, 1024, 256, 1536, 1536}},
                         {"rope_norm_paged_interleaved",
                          {2048, 8, 2, 128, 128, 16, 4096, 1024, 1536, 1536, 1536}},
                         {"sort_by_expert", {1000, 8, 128}},
                         {"sort_by_expert", {8192, 2, 8}},
                         {"gemm", {512, 512, 136}},
                         {"gemm", {640, 1536, 1032}},
                         {"gemm", {16, 4096, 2048}},
                         {"gemm", {300, 1003, 1000}},
                         {"gemm_nn", {640, 1536, 1032}},
                         {"gemm_fp8", {640, 1536, 1040}},
                         {"gemm_fp8_fast", {640, 1536, 1040}},
                         {"gemm_fp8_block", {640, 1536, 1152}},
                         {"gemm_grouped", {640, 1536, 1032, 5}},
                         {"gemm_padded", {640, 1536, 1032, 5, 64}},
                         {"gemm_grouped_fp8_block", {640, 1536, 1152, 5}},
                         {"gemm_gated_silu", {640, 1536, 1032}},
                         {"gemm_fp8_rows_gated_silu", {640, 1536, 1040}},
                         {"gemm_fp8_block_gated_silu", {640, 1536, 1152}},
                         {"gemm_fp8_rows_gated_silu_fp8_tensor", {640, 1536, 1040}},
                         {"gemm_fp8_rows_gated_silu_fp8_blocks", {640, 1536, 1040}},
                         {"gemm_fp8_block_gated_silu_fp8_blocks", {640, 1536, 1152}}}) {
    for (const std::string& type : types_of(c.kernel)) {
      const KernelDefinition kernel = shipped_kernels().make(c.kernel, type);
      CAPTURE(kernel.name, type, kernel.describe_problem(c.problem));
      const SameBits found = same_bits(runtime, kernel, c.problem, 24);
      CHECK(found.different == "");
      CHECK(found.compared >= (c.alone ? 1 : 2));
    }
  }
}

TEST_CASE("a name that claims too much is found out", "[gpu][templates][numerics]") {
  KernelDefinition kernel = shipped_kernels().make("rmsnorm", "f32");
  kernel.numerics = [](auto, auto) { return "all"; };
  CHECK(same_bits(gpu(), kernel, {64, 4096}, 24).different != "");
}
