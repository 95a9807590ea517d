// NaNs, infinities and zeros among the inputs of each shipped kernel on real hardware, whose
// conversions, exponentials, scales and tensor cores are others than the host target's.
#include "gemm_test.hpp"
#include "special_values.hpp"
#include "templates/kernels.hpp"

using namespace kiln::templates;
using special_values::Special;

namespace {

void check_specials(const kiln::DynamicTuned& tuned, const kiln::Values& problem) {
  const kiln::Verification v = tuned.verify(problem);
  INFO(v.why);
  CHECK(v.right);
}

}  // namespace

TEST_CASE(
    "each shipped kernel makes of NaNs, infinities and zeros what its reference does on a GPU",
    "[gpu][templates]") {
  const kiln::Runtime runtime = gpu_test::untuned_runtime();
  const kiln::Registry registry = kiln::shipped_kernels();
  for (const auto& registered : registry.kernels()) {
    if (!special_values::tried(registered.name)) continue;
    for (const std::string& type : registered.types) {
      const kiln::KernelDefinition kernel = registered.make(type);
      for (const Special special : {Special::nans, Special::infinities}) {
        INFO(kernel.name << " " << type << (special == Special::nans ? " NaNs" : " infinities"));
        const auto specials = special_values::with_specials(kernel, special);
        check_specials(runtime.tuned(specials), special_values::small_problem(kernel));
      }
    }
  }
}

TEST_CASE("NaNs, infinities and zeros by each body of the GEMMs", "[gpu][templates]") {
  const kiln::Runtime runtime = gpu_test::untuned_runtime();
  const bool hopper = runtime.device().limits.compute_capability == 90;
  using C = GemmCluster;
  const std::vector<Gemm> two_bytes = gpu_test::each_kind(
      {{GemmBody::tma, 128, 64, 64, 1, 64, 64, 8, 8, C::split_2},
       {GemmBody::tma, 64, 64, 64, 1, 64, 64, 8, 8, C::none, 1, false, false, 2, false}});
  const std::vector<Gemm> one_byte{
      {GemmBody::simt, 64, 64, 64, 2, 4, 4, 8, 8},
      {GemmBody::pingpong, 128, 128, 128, 1, 128, 64, 8, 8},
      {GemmBody::tma, 128, 128, 128, 1, 64, 64, 8, 8, C::two_m},
      {GemmBody::tma, 64, 16, 128, 1, 64, 64, 8, 8, C::none, 2, false, true},
      {GemmBody::tma, 64, 96, 128, 1, 64, 64, 8, 8, C::none, 1, false, false, 2, true}};
  for (const auto& [name, type] :
       std::vector<std::pair<const char*, const char*>>{{"gemm", "bf16"},
                                                        {"gemm", "f16"},
                                                        {"gemm_nn", "bf16"},
                                                        {"gemm_grouped", "bf16"},
                                                        {"gemm_padded", "bf16"},
                                                        {"gemm_masked", "bf16"},
                                                        {"gemm_gated_silu", "bf16"},
                                                        {"gemm_fp8", ""},
                                                        {"gemm_fp8_fast", ""},
                                                        {"gemm_fp8_block", ""},
                                                        {"gemm_fp8_rows_gated_silu", ""},
                                                        {"gemm_grouped_fp8_block", ""}}) {
    const kiln::KernelDefinition kernel = kiln::shipped_kernels().make(name, type);
    kiln::Values problem = special_values::small_problem(kernel);
    problem[2] = 2048;  // so that blocks may share k
    int tried = 0;
    for (const Gemm& config :
         std::string_view(name).find("fp8") == std::string_view::npos ? two_bytes : one_byte) {
      if (!hopper && (config.uses_tma() || config.body == GemmBody::wgmma)) continue;
      const auto values = kiln::to_values(config);
      if (kernel.space.violated(values, problem, runtime.device().limits)) continue;
      ++tried;
      for (const Special special : {Special::nans, Special::infinities}) {
        INFO(kernel.name << " with " << kernel.space.describe(values)
                         << (special == Special::nans ? " NaNs" : " infinities"));
        const auto specials = special_values::with_specials(kernel, special);
        check_specials(runtime.tuned(specials).with_config({values.begin(), values.end()}),
                       problem);
      }
    }
    CHECK(tried > 0);
  }
}
