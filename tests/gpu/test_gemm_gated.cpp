// Gated GEMMs on real hardware: each body, schedule and cluster, in both layouts of the weights,
// verified by the kernel's own reference with guards around each array.
#include <algorithm>
#include <cmath>

#include "gemm_test.hpp"
#include "kiln/kernels/gemm_fp8.hpp"
#include "kiln/kernels/gemm_fp8_gated.hpp"
#include "kiln/kernels/gemm_fp8_gated_fp8.hpp"
#include "kiln/kernels/gemm_gated.hpp"
#include "kiln/kernels/gemm_gated_fp8.hpp"
#include "kiln/kernels/interleave_gate_up.hpp"
#include "kiln/kernels/quantize.hpp"

using namespace kiln::templates;
using gpu_test::check_each, gpu_test::each_kind, gpu_test::untuned_runtime;
using kiln::bfloat16, kiln::float16;
using kiln::epilogue::Gelu, kiln::epilogue::GeluTanh, kiln::epilogue::Relu, kiln::epilogue::Silu;

namespace {

using enum GemmBody;
using C = GemmCluster;

const std::vector<Gemm> kGatedConfigs =
    each_kind({{tma, 64, 16, 64, 1, 64, 64, 8, 8, C::split_4, 1, false, true},
               {tma, 128, 48, 64, 1, 64, 64, 8, 8, C::none, 1, false, true, 4},
               {tma, 64, 32, 64, 1, 64, 64, 8, 8, C::none, 1, false, true, 6, true},
               {stream, 16, 32, 512, 2, 16, 64, 8, 8}});

const std::vector<GatedProblem> kGated{{1000, 264, 200}, {300, 520, 1024}, {5, 64, 64},
                                       {16, 4096, 4096}, {200, 36, 68},    {40, 1003, 2048},
                                       {1, 8, 8}};

/// What GEMMs make of 8-bit floats that were rounded once, and of those that were rounded to bf16
/// on the way: some elements become a neighbour, which is an eighth off.
void check_nearly(const std::vector<bfloat16>& fused, const std::vector<bfloat16>& apart) {
  double most = 0, off = 0, squares = 0, squares_off = 0;
  for (std::size_t i = 0; i < fused.size(); ++i) {
    const auto one = static_cast<double>(static_cast<float>(fused[i]));
    const double by = one - static_cast<double>(static_cast<float>(apart[i]));
    most = std::max(most, std::abs(one));
    off = std::max(off, std::abs(by));
    squares += one * one;
    squares_off += by * by;
  }
  CHECK(most > 0);
  CHECK(off <= most / 16);
  CHECK(squares_off <= 0.03 * 0.03 * squares);
}

}  // namespace

TEST_CASE("gated gemm is right by each body", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  check_each(runtime, gemm_gated_kernel<bfloat16, Silu>(), kGatedConfigs, kGated);
  check_each(runtime, gemm_gated_kernel<bfloat16, Gelu, GatedWeights::interleaved>(), kGatedConfigs,
             kGated);
  check_each(runtime, gemm_gated_kernel<float16, GeluTanh>(), kGatedConfigs, kGated);
  for (const GatedProblem& p : kGated)
    CHECK(runtime.tuned(gemm_gated_kernel<float, Relu>()).verify(p).right);
}

TEST_CASE("gated gemm of 8-bit floats is right by each body", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  using kiln::epilogue::RowScales, kiln::epilogue::TensorScales;
  std::vector<Gemm> exact{{pingpong, 128, 128, 128, 1, 128, 64, 8, 8},
                          {pingpong, 64, 96, 128, 1, 64, 64, 8, 4, C::two_n},
                          {pingpong, 64, 192, 128, 1, 64, 64, 8, 8, C::two_m, 1, true},
                          {tma, 128, 192, 128, 1, 64, 64, 8, 8, C::two_m},
                          {tma, 256, 128, 128, 1, 128, 64, 8, 4, C::two_n, 1, true},
                          {tma, 64, 64, 128, 1, 64, 64, 8, 8, C::none, 2},
                          {tma, 64, 16, 128, 1, 64, 64, 8, 8, C::none, 2, false, true},
                          {tma, 128, 64, 128, 1, 128, 64, 8, 8, C::none, 1, false, true},
                          {tma, 64, 16, 128, 1, 64, 64, 8, 8, C::split_4, 1, false, true},
                          {tma, 128, 48, 128, 1, 64, 64, 8, 8, C::none, 1, false, true, 4},
                          {tma, 64, 32, 128, 1, 64, 64, 8, 8, C::none, 1, false, true, 6, true}};
  std::vector<Gemm> fast = exact;
  fast.push_back({tma, 128, 256, 128, 1, 64, 64, 8, 8, C::two_m});
  fast.push_back({tma, 64, 128, 256, 1, 64, 64, 8, 8, C::none, 2});
  const std::vector<GatedProblem> problems{{1000, 264, 208}, {300, 520, 1024}, {5, 64, 64},
                                           {16, 4096, 4096}, {200, 40, 80},    {40, 1003, 2048},
                                           {1, 8, 16}};
  check_each(runtime, gemm_fp8_gated_kernel<Silu, RowScales>(), exact, problems);
  check_each(runtime, gemm_fp8_gated_kernel<Gelu, TensorScales, GatedWeights::interleaved>(), exact,
             problems);
  check_each(runtime,
             gemm_fp8_gated_kernel<GeluTanh, RowScales, GatedWeights::stacked, Fp8Sums::fast>(),
             fast, problems);
  const std::vector<GatedProblem> of_blocks{{1000, 264, 256}, {300, 520, 1024}, {5, 64, 128},
                                            {16, 4096, 4096}, {200, 200, 384},  {40, 1003, 4096},
                                            {1, 8, 128}};
  check_each(runtime, gemm_fp8_block_gated_kernel<Silu>(), exact, of_blocks);
  check_each(runtime, gemm_fp8_block_gated_kernel<Gelu, GatedWeights::interleaved>(), exact,
             of_blocks);
  CHECK(runtime.tuned(gemm_fp8_block_gated_kernel<Relu>()).verify({33, 75, 256}).right);
  for (const GatedProblem& p : {GatedProblem{100, 75, 130}, {1, 1, 1}, {33, 40, 50}})
    CHECK(runtime.tuned(gemm_fp8_gated_kernel<Relu, RowScales>()).verify(p).right);
  CHECK(runtime.tuned(interleave_gate_up_kernel<kiln::float8_e4m3>()).verify({1003, 1008}).right);
}

TEST_CASE("gated gemm to 8-bit floats is right by each body", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  check_each(runtime, gemm_gated_fp8_tensor_kernel<bfloat16, Silu>(), kGatedConfigs, kGated);
  check_each(runtime, gemm_gated_fp8_tensor_kernel<float16, Gelu, GatedWeights::interleaved>(),
             kGatedConfigs, kGated);
  const std::vector<Gemm> of_blocks{{mma, 64, 256, 32, 3, 32, 32, 8, 8},
                                    {mma, 32, 256, 64, 3, 16, 64, 8, 8},
                                    {wgmma, 128, 256, 64, 3, 64, 256, 8, 8},
                                    {pingpong, 64, 256, 64, 1, 64, 64, 8, 8},
                                    {pingpong, 64, 256, 64, 1, 64, 64, 8, 4, C::two_n},
                                    {tma, 64, 256, 64, 1, 64, 64, 8, 8},
                                    {tma, 128, 256, 64, 1, 64, 64, 8, 8, C::two_m, 1, true},
                                    {tma, 256, 16, 64, 1, 128, 64, 8, 8, C::none, 1, false, true},
                                    {tma, 256, 96, 64, 1, 128, 64, 8, 8, C::none, 1, false, true}};
  check_each(runtime, gemm_gated_fp8_blocks_kernel<bfloat16, Silu>(), of_blocks, kGated);
  check_each(runtime, gemm_gated_fp8_blocks_kernel<float16, GeluTanh, GatedWeights::interleaved>(),
             of_blocks, kGated);
  for (const GatedProblem& p : kGated) {
    CHECK(runtime.tuned(gemm_gated_fp8_blocks_kernel<float, Relu>()).verify(p).right);
    CHECK(runtime.tuned(gemm_gated_fp8_tensor_kernel<float, Relu>()).verify(p).right);
  }
}

TEST_CASE("gated gemm of and to 8-bit floats is right by each body", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  using kiln::epilogue::RowScales, kiln::epilogue::TensorScales;
  using enum GatedWeights;
  const std::vector<Gemm> to_tensor{
      {pingpong, 64, 192, 128, 1, 64, 64, 8, 8, C::two_m, 1, true},
      {tma, 128, 192, 128, 1, 64, 64, 8, 8, C::two_m},
      {tma, 256, 128, 128, 1, 128, 64, 8, 4, C::two_n, 1, true},
      {tma, 64, 64, 128, 1, 64, 64, 8, 8, C::none, 2},
      {tma, 64, 16, 128, 1, 64, 64, 8, 8, C::none, 2, false, true},
      {tma, 64, 16, 128, 1, 64, 64, 8, 8, C::split_4, 1, false, true},
      {tma, 128, 48, 128, 1, 64, 64, 8, 8, C::none, 1, false, true, 4},
      {tma, 64, 32, 128, 1, 64, 64, 8, 8, C::none, 1, false, true, 6, true}};
  const std::vector<Gemm> to_blocks{{pingpong, 64, 256, 128, 1, 64, 64, 8, 8},
                                    {pingpong, 64, 256, 128, 1, 64, 64, 8, 4, C::two_n},
                                    {tma, 64, 256, 128, 1, 64, 64, 8, 8},
                                    {tma, 64, 256, 128, 1, 64, 64, 8, 4, C::two_m},
                                    {tma, 128, 256, 128, 1, 64, 64, 8, 8},
                                    {tma, 128, 256, 128, 1, 64, 64, 8, 8, C::two_m, 1, true},
                                    {tma, 256, 16, 128, 1, 128, 64, 8, 8, C::none, 1, false, true},
                                    {tma, 256, 96, 128, 1, 128, 64, 8, 8, C::none, 1, false, true},
                                    {simt, 32, 256, 64, 2, 4, 8, 8, 8}};
  const std::vector<GatedProblem> problems{{1000, 264, 208}, {300, 520, 1024}, {5, 64, 64},
                                           {16, 4096, 4096}, {200, 40, 80},    {40, 1003, 2048},
                                           {1, 8, 16}};
  const std::vector<GatedProblem> of_blocks{{1000, 264, 256}, {300, 520, 1024}, {5, 64, 128},
                                            {16, 4096, 4096}, {200, 200, 384},  {40, 1003, 4096},
                                            {1, 8, 128}};
  check_each(runtime, gemm_fp8_gated_fp8_tensor_kernel<Silu, RowScales>(), to_tensor, problems);
  check_each(runtime,
             gemm_fp8_gated_fp8_tensor_kernel<GeluTanh, TensorScales, interleaved, Fp8Sums::fast>(),
             to_tensor, problems);
  check_each(runtime, gemm_fp8_block_gated_fp8_tensor_kernel<Gelu>(), to_tensor, of_blocks);
  check_each(runtime, gemm_fp8_block_gated_fp8_blocks_kernel<Silu>(), to_blocks, of_blocks);
  check_each(runtime, gemm_fp8_block_gated_fp8_blocks_kernel<Gelu, interleaved>(), to_blocks,
             of_blocks);
  check_each(runtime, gemm_fp8_gated_fp8_blocks_kernel<Silu, RowScales>(), to_blocks, problems);
  check_each(runtime,
             gemm_fp8_gated_fp8_blocks_kernel<Gelu, TensorScales, interleaved, Fp8Sums::fast>(),
             to_blocks, problems);
  for (const GatedProblem& p : {GatedProblem{100, 75, 130}, {1, 1, 1}, {33, 140, 50}}) {
    CHECK(runtime.tuned(gemm_fp8_gated_fp8_blocks_kernel<Relu, RowScales>()).verify(p).right);
    CHECK(runtime.tuned(gemm_fp8_gated_fp8_tensor_kernel<Relu, RowScales>()).verify(p).right);
  }
}

TEST_CASE("a gated MLP of 8-bit floats throughout: two launches give what three do",
          "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  using kiln::float8_e4m3;
  const int m = 200, n = 512, k = 256, hidden = 384;
  const auto of_n = std::size_t(n / 128), of_k = std::size_t(k / 128),
             leading = std::size_t(kiln::scale_leading(m));
  const auto values = [](std::size_t count, std::size_t prime, std::size_t of) {
    std::vector<float8_e4m3> made(count);
    for (std::size_t i = 0; i < count; ++i)
      made[i] = float8_e4m3(2 * static_cast<float>(i * prime % of) / static_cast<float>(of) - 1);
    return made;
  };
  const auto scales_of = [](std::size_t count) {
    std::vector<float> made(count);
    for (std::size_t i = 0; i < count; ++i) made[i] = 0.25f + static_cast<float>(i % 7) / 16;
    return made;
  };
  const auto a = runtime.array(values(std::size_t(m) * k, 7919, 31)),
             w = runtime.array(values(std::size_t(2 * n) * k, 104729, 37)),
             down = runtime.array(values(std::size_t(hidden) * n, 1299709, 17));
  const auto of_a = runtime.array(scales_of(of_k * leading)),
             of_w = runtime.array(scales_of(2 * of_n * of_k)),
             of_down = runtime.array(scales_of(3 * of_n));
  auto q = runtime.array(std::vector<float8_e4m3>(std::size_t(m) * n));
  auto scales = runtime.array(std::vector<float>(of_n * leading));
  const auto product = [&] {
    auto y = runtime.array(std::vector<bfloat16>(std::size_t(m) * hidden));
    runtime.tuned(gemm_fp8_block_kernel<>())({}, y.data(), q.data(), down.data(), m, hidden, n,
                                             scales.data(), of_down.data());
    runtime.synchronize();
    return y.download();
  };
  runtime.tuned(gemm_fp8_block_gated_fp8_blocks_kernel<Silu>())(
      {}, q.data(), a.data(), w.data(), m, n, k, of_a.data(), of_w.data(), scales.data());
  const auto fused = product();
  auto middle = runtime.array(std::vector<bfloat16>(std::size_t(m) * n));
  runtime.tuned(gemm_fp8_block_gated_kernel<Silu>())({}, middle.data(), a.data(), w.data(), m, n, k,
                                                     of_a.data(), of_w.data());
  runtime.tuned(quantize_blocks_kernel<bfloat16>())({}, q.data(), scales.data(), middle.data(), m,
                                                    n);
  check_nearly(fused, product());
}

TEST_CASE("a gated MLP in 8-bit floats: two launches give what four do", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  const int m = 200, n = 512, k = 256, hidden = 384;
  const auto blocks = std::size_t(n / 128),
             scale_count = blocks * std::size_t(kiln::scale_leading(m));
  std::vector<bfloat16> values(std::size_t(2 * n) * k);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = bfloat16(static_cast<float>(i * 7919 % 31) / 16 - 1);
  std::vector<kiln::float8_e4m3> of_down(std::size_t(hidden) * n);
  for (std::size_t i = 0; i < of_down.size(); ++i)
    of_down[i] = kiln::float8_e4m3(static_cast<float>(i * 104729 % 17) / 8 - 1);
  const auto w = runtime.array(values);
  const auto a = runtime.array(std::vector<bfloat16>(values.begin(), values.begin() + m * k));
  const auto down = runtime.array(of_down);
  const auto of_weights = runtime.array(std::vector<float>(blocks * 3, 0.5f));
  const auto product = [&](auto& q, auto& scales) {
    auto y = runtime.array(std::vector<bfloat16>(std::size_t(m) * hidden));
    runtime.tuned(gemm_fp8_block_kernel<>())({}, y.data(), q.data(), down.data(), m, hidden, n,
                                             scales.data(), of_weights.data());
    runtime.synchronize();
    return y.download();
  };
  auto q = runtime.array(std::vector<kiln::float8_e4m3>(std::size_t(m) * n));
  auto scales = runtime.array(std::vector<float>(scale_count));
  runtime.tuned(gemm_gated_fp8_blocks_kernel<bfloat16, Silu>())({}, q.data(), a.data(), w.data(), m,
                                                                n, k, scales.data());
  const auto fused = product(q, scales);
  auto middle = runtime.array(std::vector<bfloat16>(std::size_t(m) * n));
  runtime.tuned(gemm_gated_kernel<bfloat16, Silu>())({}, middle.data(), a.data(), w.data(), m, n,
                                                     k);
  runtime.tuned(quantize_blocks_kernel<bfloat16>())({}, q.data(), scales.data(), middle.data(), m,
                                                    n);
  const auto apart = product(q, scales);
  check_nearly(fused, apart);
}

TEST_CASE("interleaved weights give what stacked ones do", "[gpu][templates]") {
  const kiln::Runtime runtime = untuned_runtime();
  const auto interleave = runtime.tuned(interleave_gate_up_kernel<bfloat16>());
  for (const GateUpRows& p : {GateUpRows{14336, 4096}, {1003, 1001}, {1, 1}})
    CHECK(interleave.verify(p).right);
  const int m = 300, n = 520, k = 256;
  std::vector<bfloat16> values(std::size_t(2 * n) * k);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = bfloat16(static_cast<float>(i * 7919 % 31) / 16 - 1);
  const auto w = runtime.array(values);
  const auto a = runtime.array(std::vector<bfloat16>(values.begin(), values.begin() + m * k));
  auto rows = runtime.array(std::vector<bfloat16>(std::size_t(gated_rows(n)) * k));
  auto first = runtime.array(std::vector<bfloat16>(std::size_t(m) * n));
  auto second = runtime.array(std::vector<bfloat16>(std::size_t(m) * n));
  interleave({}, rows.data(), w.data(), w.data() + n * k, n, k);
  runtime.tuned(gemm_gated_kernel<bfloat16, Silu>())({}, first.data(), a.data(), w.data(), m, n, k);
  runtime.tuned(gemm_gated_kernel<bfloat16, Silu, GatedWeights::interleaved>())(
      {}, second.data(), a.data(), rows.data(), m, n, k);
  runtime.synchronize();
  const auto one = first.download(), other = second.download();
  std::size_t different = 0;
  for (std::size_t i = 0; i < one.size(); ++i)
    different += !(static_cast<float>(one[i]) == static_cast<float>(other[i]));
  CHECK(different == 0);
}
