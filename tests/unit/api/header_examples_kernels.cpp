// The examples of the shipped kernels' headers, and of kernels whose types have no signature, as in
// header_examples.cpp.
#include <memory>
#include <span>

#include "kiln/kernels/gated_activation.hpp"
#include "kiln/kernels/gated_fp8.hpp"
#include "kiln/kernels/gemm.hpp"
#include "kiln/kernels/gemm_all_gather.hpp"
#include "kiln/kernels/gemm_choice.hpp"
#include "kiln/kernels/gemm_experts_combine.hpp"
#include "kiln/kernels/gemm_experts_gather.hpp"
#include "kiln/kernels/gemm_fp8.hpp"
#include "kiln/kernels/gemm_fp8_choice.hpp"
#include "kiln/kernels/gemm_fp8_gated.hpp"
#include "kiln/kernels/gemm_fp8_gated_fp8.hpp"
#include "kiln/kernels/gemm_gated.hpp"
#include "kiln/kernels/gemm_gated_fp8.hpp"
#include "kiln/kernels/gemm_grouped.hpp"
#include "kiln/kernels/gemm_grouped_fp8.hpp"
#include "kiln/kernels/gemm_reduce_scatter.hpp"
#include "kiln/kernels/interleave_gate_up.hpp"
#include "kiln/kernels/quantize_blocks_masked.hpp"
#include "kiln/kernels/quantize_tensor_dynamic.hpp"
#include "kiln/kernels/quantize_weights.hpp"
#include "kiln/kernels/rope.hpp"
#include "kiln/kernels/small_spaces.hpp"
#include "kiln/kernels/sort_by_expert.hpp"
#include "kiln/kiln.hpp"

// clang-format off
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"

struct LeakyRelu {
  float operator()(float sum, const kiln::epilogue::Place&, float slope) const {
    return sum < 0 ? slope * sum : sum;
  }
};
template <>
struct kiln::DeviceName<LeakyRelu> {
  static constexpr const char* value = "LeakyRelu";
};

namespace header_examples {

using namespace kiln;
using namespace kiln::templates;
using Half = kiln::bfloat16;
using Eighth = kiln::float8_e4m3;
using Ranks = std::shared_ptr<kiln::Communicator>;

void kernels() {
  auto gemm = kiln::templates::gemm_kernel<kiln::bfloat16>();    // typed: kiln/kernels/gemm.hpp
  kiln::shipped_kernels().make("gemm", "bf16");                  // by name
}

void gemm(kiln::Runtime& runtime, kiln::Stream stream, Half* c, const Half* a, const Half* b, int m, int n, int k) {
  auto gemm = runtime.tuned(kiln::templates::gemm_kernel<kiln::bfloat16>());
  gemm(stream, c, a, b, m, n, k);  // C = A * B^T, without gaps
}

void fused_gemm(kiln::Runtime& runtime, kiln::Stream stream, Half* c, const Half* a, const Half* b, int m, int n, int k, const Half* bias) {
  using kiln::epilogue::Bias, kiln::epilogue::Chain, kiln::epilogue::Gelu;
  using BiasGelu = Chain<Bias<kiln::bfloat16>, Gelu>;
  auto fused = runtime.tuned(gemm_kernel<kiln::bfloat16, GemmTranspose::nn, BiasGelu>());
  fused(stream, c, a, b, m, n, k, bias);
  auto leaky = runtime.tuned(
      gemm_kernel<kiln::bfloat16, GemmTranspose::nt, LeakyRelu>("/path/to/leaky_relu.hpp"));
  leaky(stream, c, a, b, m, n, k, 0.01f);
}

void batches(kiln::Runtime& runtime, kiln::Stream stream, float* c, const float* a, const float* b, int m, int n, int k,
             int ldc, int lda, int ldb, int batch, long stride_c, long stride_a, long stride_b) {
  auto batched = runtime.tuned(gemm_strided_kernel<float>());
  batched(stream, c, a, b, m, n, k, ldc, lda, ldb, batch, stride_c, stride_a, stride_b);
}

void gemm_by_choice(kiln::Runtime& runtime, kiln::Stream stream, Half* c, const Half* a, const Half* b, int m, int n, int k) {
  auto gemm = kiln::tuned(runtime, kiln::templates::gemm_choice<kiln::bfloat16>());
  gemm(stream, c, a, b, m, n, k);  // C = A * B^T, without gaps
}

void gemm_fp8_by_choice(kiln::Runtime& runtime, kiln::Stream stream, Half* c, const Eighth* a, const Eighth* b, int m, int n, int k,
                        const float* scale_a, const float* scale_b) {
  auto gemm = kiln::tuned(runtime, kiln::templates::gemm_fp8_choice<>());
  gemm(stream, c, a, b, m, n, k, scale_a, scale_b);  // C = scale_a * scale_b * A * B^T
}

void gemm_fp8(kiln::Runtime& runtime, kiln::Stream stream, Half* c, const Eighth* a, const Eighth* b, int m, int n, int k,
              const float* scale_a, const float* scale_b, const float* scales_a, const float* scales_b, const Half* bias) {
  auto gemm = runtime.tuned(kiln::templates::gemm_fp8_kernel<>());
  gemm(stream, c, a, b, m, n, k, scale_a, scale_b);
  using Bias = epilogue::Bias<kiln::bfloat16>;
  using Scaled = kiln::templates::Fp8Epilogue<epilogue::RowScales, Bias>;
  auto rows = runtime.tuned(kiln::templates::gemm_fp8_kernel<Scaled, Fp8Sums::fast>());
  rows(stream, c, a, b, m, n, k, scales_a, scales_b, bias);
  auto blocks = runtime.tuned(kiln::templates::gemm_fp8_block_kernel<epilogue::Gelu>());
  blocks(stream, c, a, b, m, n, k, scales_a, scales_b);
}

void gemm_grouped(kiln::Runtime& runtime, kiln::Stream stream, Half* c, const Half* a, const Half* b, const int* ends,
                  const int* counts, int m, int n, int k, int groups, int row_alignment, int expected) {
  auto gemm = runtime.tuned(kiln::templates::gemm_grouped_kernel<kiln::bfloat16>());
  gemm(stream, c, a, b, ends, m, n, k, groups);
  auto padded = runtime.tuned(kiln::templates::gemm_padded_kernel<kiln::bfloat16>());
  padded(stream, c, a, b, ends, m, n, k, groups, row_alignment);
  auto masked = runtime.tuned(kiln::templates::gemm_masked_kernel<kiln::bfloat16>());
  masked(stream, c, a, b, counts, m, n, k, groups, expected);
}

void gemm_grouped_fp8(kiln::Runtime& runtime, kiln::Stream stream, Half* c, const Eighth* a, const Eighth* b, const int* ends,
                      const int* counts, int m, int n, int k, int groups, int row_alignment, int expected, const float* scales_a,
                      const float* scales_b) {
  auto gemm = runtime.tuned(kiln::templates::gemm_grouped_fp8_block_kernel<>());
  gemm(stream, c, a, b, ends, m, n, k, groups, scales_a, scales_b);
  auto padded = runtime.tuned(kiln::templates::gemm_padded_fp8_block_kernel<>());
  padded(stream, c, a, b, ends, m, n, k, groups, row_alignment, scales_a, scales_b);
  auto masked = runtime.tuned(kiln::templates::gemm_masked_fp8_block_kernel<>());
  masked(stream, c, a, b, counts, m, n, k, groups, expected, scales_a, scales_b);
}

void gemm_gated(kiln::Runtime& runtime, kiln::Stream stream, Half* out, const Half* a, const Half* w, int m, int n, int k) {
  using kiln::epilogue::Silu;
  auto gated = runtime.tuned(kiln::templates::gemm_gated_kernel<kiln::bfloat16, Silu>());
  gated(stream, out, a, w, m, n, k);  // then gemm(stream, y, out, down, m, hidden, n)
}

void interleave_gate_up(kiln::Runtime& runtime, kiln::Stream stream, Half* out, const Half* gate, const Half* up, int n, int k) {
  auto interleave = runtime.tuned(kiln::templates::interleave_gate_up_kernel<kiln::bfloat16>());
  interleave(stream, out, gate, up, n, k);
}

void gemm_gated_fp8(kiln::Runtime& runtime, kiln::Stream stream, Half* y, Eighth* q, const Half* a, const Half* w,
                    const Eighth* weights, int m, int n, int k, int hidden, float* scales, const float* scales_of_weights) {
  using kiln::epilogue::Silu;
  using T = kiln::bfloat16;
  auto gated = runtime.tuned(kiln::templates::gemm_gated_fp8_blocks_kernel<T, Silu>());
  auto down = runtime.tuned(kiln::templates::gemm_fp8_block_kernel<>());
  gated(stream, q, a, w, m, n, k, scales);
  down(stream, y, q, weights, m, hidden, n, scales, scales_of_weights);
}

void gemm_fp8_gated(kiln::Runtime& runtime, kiln::Stream stream, Half* out, const Eighth* a, const Eighth* w, int m, int n, int k,
                    const float* scales_a, const float* scales_w) {
  using kiln::epilogue::Silu, kiln::epilogue::RowScales;
  auto gated = runtime.tuned(kiln::templates::gemm_fp8_gated_kernel<Silu, RowScales>());
  gated(stream, out, a, w, m, n, k, scales_a, scales_w);
  auto blocks = runtime.tuned(kiln::templates::gemm_fp8_block_gated_kernel<Silu>());
  blocks(stream, out, a, w, m, n, k, scales_a, scales_w);
}

void gemm_fp8_gated_fp8(kiln::Runtime& runtime, kiln::Stream stream, Half* y, Eighth* q, const Eighth* a, const Eighth* w,
                        const Eighth* weights, int m, int n, int k, int hidden, const float* scales_a, const float* scales_w,
                        float* scales, const float* scales_of_weights, const float* scale) {
  using kiln::epilogue::Silu, kiln::epilogue::RowScales;
  auto gated = runtime.tuned(kiln::templates::gemm_fp8_block_gated_fp8_blocks_kernel<Silu>());
  auto down = runtime.tuned(kiln::templates::gemm_fp8_block_kernel<>());
  gated(stream, q, a, w, m, n, k, scales_a, scales_w, scales);
  down(stream, y, q, weights, m, hidden, n, scales, scales_of_weights);
  auto rows = runtime.tuned(
      kiln::templates::gemm_fp8_gated_fp8_tensor_kernel<Silu, RowScales>());
  rows(stream, q, a, w, m, n, k, scales_a, scales_w, scale);
}

void gemm_all_gather(kiln::Runtime& runtime, Ranks ranks, kiln::Stream stream, Half* c, const Half* a, const Half* b, int m, int n, int k) {
  kiln::SymmetricMemory memory(runtime, ranks,
                               {.bytes = all_gather_bytes<kiln::bfloat16>(m, k, ranks->size()),
                                .flags = kPeerGemmFlags});
  AllGatherGemm<kiln::bfloat16> operation(runtime, memory);
  operation.tune(m, n, k, ranks);
  memory.within(kiln::deadline_in(10), [&] {
    operation(stream, c, a, b, m, n, k);
    runtime.synchronize(stream);
  });
}

void gemm_reduce_scatter(kiln::Runtime& runtime, kiln::SymmetricMemory& memory, kiln::Stream stream, Half* c, const Half* a, const Half* b,
                         int m, int n, int k) {
  ReduceScatterGemm<kiln::bfloat16> operation(runtime, memory);
  operation(stream, c, a, b, m, n, k);
}

void gemm_experts_gather(kiln::Runtime& runtime, Ranks ranks, kiln::Stream stream, Half* c, const Half* a, const Half* b, const int* tokens,
                         const int* ends, int m, int n, int k) {
  const auto bytes = expert_gather_bytes<kiln::bfloat16>(m, k, 2, ranks->size());
  kiln::SymmetricMemory memory(runtime, ranks, {.bytes = bytes, .flags = kExpertFlags});
  ExpertsGather<kiln::bfloat16> up(runtime, memory);
  const ExpertsProblem problem{.m = m, .n = n, .k = k, .groups = 32, .top = 2,
                               .ranks = memory.size()};
  memory.within(kiln::deadline_in(60), [&] { up.tune(problem, ranks); });
  up(stream, c, a, b, tokens, ends, problem);
}

void gemm_experts_combine(kiln::Runtime& runtime, kiln::SymmetricMemory& memory, kiln::Stream stream, Half* c, const Half* a, const Half* b,
                          const int* ends, const int* places, const float* weights, const ExpertsProblem& problem) {
  ExpertsCombine<kiln::bfloat16> down(runtime, memory);
  down(stream, c, a, b, ends, places, weights, problem);
}

void sort_by_expert(kiln::Runtime& runtime, kiln::Stream stream, int* ends, int* tokens, int* places, const int* choices, int count, int top, int groups) {
  auto sort = runtime.tuned(kiln::templates::sort_by_expert_kernel());
  sort(stream, ends, tokens, places, choices, count, top, groups);
  // A row's input is x[tokens[i]]; then gemm_grouped(stream, c, a, b, ends, count * top, ...).
}

void gated_activation(kiln::Runtime& runtime, kiln::Stream stream, Half* out, const Half* x, int rows, int hidden) {
  using kiln::epilogue::Silu;
  auto activate = runtime.tuned(
      kiln::templates::gated_activation_kernel<kiln::bfloat16, Silu>());
  activate(stream, out, x, rows, hidden);
}

void gated_fp8(kiln::Runtime& runtime, kiln::Stream stream, Eighth* q, float* scales, const Half* x, int rows, int hidden) {
  using kiln::epilogue::Silu;
  auto middle = runtime.tuned(kiln::templates::gated_fp8_blocks_kernel<kiln::bfloat16, Silu>());
  middle(stream, q, scales, x, rows, hidden);
}

void rope(kiln::Runtime& runtime, kiln::Stream stream, Half* q, Half* k, const float* table, const std::int64_t* positions, int tokens,
          int max_position, long stride) {
  auto rope = runtime.tuned(kiln::templates::rope_kernel<kiln::bfloat16>());
  rope(stream, q, k, q, k, table, positions, tokens, 32, 8, 128, 128, max_position, stride,
       stride, stride, stride);
}

void small_spaces(kiln::Runtime& runtime, const kiln::Values& problem, const kiln::DeviceLimits& limits) {
  const auto visit = [](std::span<const std::int64_t>, const kiln::Constraint*) { return true; };
  const auto space = kiln::templates::gated_mlp_space().dynamic();
  kiln::for_each_config(space, problem, limits, visit);  // blocks far too large are refused
  const auto kernel = kiln::shipped_kernels().make("gemm_gated_silu", "bf16");
  auto small = kiln::templates::in_small_space(kernel);
  runtime.tuned(small).tune({512, 14336, 4096});
}

}  // namespace header_examples

// kiln/detail/untyped_kernel.hpp
namespace kiln::untyped {
struct VectorAdd { int block; };
struct Elementwise { int n; };
}  // namespace kiln::untyped
KILN_CONFIG(kiln::untyped::VectorAdd, block)
KILN_PROBLEM(kiln::untyped::Elementwise, n)

namespace kiln::untyped {

template <class T>
using VectorAddKernel = Kernel<VectorAdd, Elementwise, void(T*, const T*, int)>;
template <class T>
void add_on_host(T*, const T*, int) {}

void untyped_kernel(const Space<VectorAdd, Elementwise>& space) {
  detail::UntypedKernel<VectorAdd, Elementwise> add{{.name = "vector_add", .space = space}};
  add.computed_by(add_on_host<float>);
  add.definition();
  add.typed<VectorAddKernel<float>>([](float*, const float*, int n) { return Elementwise{n}; });
}

}  // namespace kiln::untyped

int main() {}

void quantize_blocks_masked(const kiln::Runtime& runtime, kiln::Stream stream, kiln::float8_e4m3* q,
                            float* scales, const float* x, const int* counts, int m, int hidden,
                            int groups) {
  auto quantize = runtime.tuned(kiln::templates::quantize_blocks_masked_kernel<float>());
  quantize(stream, q, scales, x, counts, m, hidden, groups);
}

void quantize_tensor_dynamic(const kiln::Runtime& runtime, kiln::Stream stream,
                             kiln::float8_e4m3* q, float* scale, const float* x, int rows,
                             int hidden) {
  auto quantize = runtime.tuned(kiln::templates::quantize_tensor_dynamic_kernel<float>());
  quantize(stream, q, scale, x, rows, hidden);
}

void quantize_weights(const kiln::Runtime& runtime, kiln::Stream stream, kiln::float8_e4m3* q,
                      float* scales, const kiln::bfloat16* w, int n, int k) {
  auto quantize = runtime.tuned(kiln::templates::quantize_weights_kernel<kiln::bfloat16>());
  quantize(stream, q, scales, w, n, k, 1);
}
