// What shipped kernels say of the bits that their configs compute, on the host target.
#include "kiln/registry.hpp"
#include "kiln/runtime.hpp"
#include "kiln_test.hpp"
#include "same_bits.hpp"
#include "templates/kernels.hpp"

using kiln::test::same_bits;
using kiln::test::SameBits;

namespace {

kiln::Runtime host_in_memory() {
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  return kiln::Runtime(options);
}

}  // namespace

TEST_CASE("configs of one name of numerics compute the same bits on the host",
          "[templates][numerics]") {
  const kiln::Runtime runtime = host_in_memory();
  for (const auto& [name, problem] : std::vector<std::pair<const char*, kiln::Values>>{
           {"vector_add", {4099}},
           {"rmsnorm", {5, 1001}},
           {"rmsnorm_residual", {5, 1001}},
           {"rmsnorm_fp8_blocks", {5, 1001}},
           {"rmsnorm_residual_fp8", {5, 1001}},
           {"layernorm", {5, 1001}},
           {"softmax", {5, 1001}},
           {"cross_entropy", {5, 1001}},
           {"quantize_rows", {5, 1001}},
           {"quantize_tensor_dynamic", {5, 1001}},
           {"quantize_blocks_masked", {5, 1000, 3}},
           {"quantize_weights", {200, 300, 2}},
           {"silu_mul_fp8_rows", {5, 1001}},
           {"gelu_mul_fp8_blocks", {5, 1000}},
           {"relu_mul_fp8_tensor", {5, 1001}},
           {"gemm_gated_silu_fp8_tensor", {33, 40, 300}},
           {"gemm_gated_gelu_fp8_blocks", {33, 200, 300}},
           {"gemm_fp8_rows_gated_silu", {33, 40, 300}},
           {"gemm_fp8_block_gated_silu", {33, 40, 384}},
           {"gemm_fp8_block_gated_silu_fp8_blocks", {33, 200, 384}},
           {"gemm_fp8_rows_gated_silu_fp8_tensor", {33, 40, 300}},
           {"gemm", {33, 40, 300}}}) {
    const auto kernel = kiln::shipped_kernels().make(
        name, std::string_view(name).starts_with("gemm_fp8") ? "" : "bf16");
    CAPTURE(kernel.name);
    const SameBits found = same_bits(runtime, kernel, problem, 5);
    CHECK(found.different == "");
    CHECK(found.compared >= 2);
  }
}

TEST_CASE("a name of numerics that claims too much is found out", "[templates][numerics]") {
  auto kernel = kiln::shipped_kernels().make("rmsnorm", "f32");
  kernel.numerics = [](auto, auto) { return "all"; };
  CHECK(same_bits(host_in_memory(), kernel, {5, 1001}, 12).different != "");
}
