// Two-layer perceptrons in bf16 for scripts/mlp.py: y = relu(x * W1^T + b1) * W2^T + b2, and gated
// ones, y = (silu(x * gate^T) * (x * up^T)) * down^T, also with 8-bit floats between their layers,
// and the first layer of those in 8 bits with scales of rows, fused and apart.
// See gemm_rows.cpp.
#include <cstdio>
#include <string>

#include "for_python.hpp"
#include "kiln/epilogue.hpp"
#include "kiln/kernels/gated_activation.hpp"
#include "kiln/kernels/gemm.hpp"
#include "kiln/kernels/gemm_fp8.hpp"
#include "kiln/kernels/gemm_fp8_gated.hpp"
#include "kiln/kernels/gemm_gated.hpp"
#include "kiln/kernels/gemm_gated_fp8.hpp"
#include "kiln/kernels/quantize.hpp"
#include "kiln/kiln.hpp"

namespace {

using kiln::bfloat16, kiln::float8_e4m3;
using kiln::epilogue::Bias, kiln::epilogue::Chain, kiln::epilogue::Relu, kiln::epilogue::Silu;
using kiln::templates::gemm_kernel, kiln::templates::gemm_gated_kernel,
    kiln::templates::GemmTranspose;

auto gated_fp8_kernel() { return kiln::templates::gemm_gated_fp8_blocks_kernel<bfloat16, Silu>(); }
auto quantize_kernel() { return kiln::templates::quantize_blocks_kernel<bfloat16>(); }
auto eight_kernel() {
  return kiln::templates::gemm_fp8_gated_kernel<Silu, kiln::epilogue::RowScales>();
}
auto both_kernel() { return kiln::templates::gemm_fp8_kernel<kiln::epilogue::RowScales>(); }
auto activate_kernel() { return kiln::templates::gated_activation_kernel<bfloat16, Silu>(); }
auto down_fp8_kernel() { return kiln::templates::gemm_fp8_block_kernel<>(); }
auto relu_kernel() {
  return gemm_kernel<bfloat16, GemmTranspose::nt, Chain<Bias<bfloat16>, Relu>>();
}
auto bias_kernel() { return gemm_kernel<bfloat16, GemmTranspose::nt, Bias<bfloat16>>(); }

/// One runtime for all layers, tuned or not.
struct Mlp {
  explicit Mlp(kiln::Mode mode) : runtime(for_python::options_of(mode)) {}

  kiln::Runtime runtime;
  decltype(runtime.tuned(gemm_kernel<bfloat16>())) down = runtime.tuned(gemm_kernel<bfloat16>());
  decltype(runtime.tuned(relu_kernel())) first = runtime.tuned(relu_kernel());
  decltype(runtime.tuned(bias_kernel())) second = runtime.tuned(bias_kernel());
  decltype(runtime.tuned(gemm_gated_kernel<bfloat16, Silu>())) gated =
      runtime.tuned(gemm_gated_kernel<bfloat16, Silu>());
  decltype(runtime.tuned(gated_fp8_kernel())) gated_fp8 = runtime.tuned(gated_fp8_kernel());
  decltype(runtime.tuned(quantize_kernel())) quantize = runtime.tuned(quantize_kernel());
  decltype(runtime.tuned(down_fp8_kernel())) down_fp8 = runtime.tuned(down_fp8_kernel());
  decltype(runtime.tuned(eight_kernel())) eight = runtime.tuned(eight_kernel());
  decltype(runtime.tuned(both_kernel())) both = runtime.tuned(both_kernel());
  decltype(runtime.tuned(activate_kernel())) activate = runtime.tuned(activate_kernel());
};

struct Mlps {
  Mlp tuned{kiln::Mode::tune_now}, untuned{kiln::Mode::untuned};
};

std::string mlp_trouble;

}  // namespace

extern "C" {

const char* mlp_failure() { return mlp_trouble.c_str(); }

void* mlp_open() {
  Mlps* mlps = nullptr;
  for_python::attempt(mlp_trouble, [&] { mlps = new Mlps; });
  return mlps;
}

/// `text` receives the winners of both layers. `kind`: 0 with ReLU and biases, 1 gated, 2 gated
/// with 8-bit floats between the layers, and the launches that are apart, 3 the first layer of
/// 8-bit floats, and its two launches.
int mlp_tune(void* handle, int kind, int m, int hidden, int inner, double seconds, char* text,
             std::size_t size) {
  return for_python::attempt(mlp_trouble, [&] {
    const Mlp& mlp = static_cast<Mlps*>(handle)->tuned;
    kiln::TuneOptions options;
    options.max_seconds = seconds / (kind == 2 ? 4 : kind == 3 ? 3 : 2);
    const auto told = [&](const kiln::TuneResult& result) {
      return result.describe(result.winner());
    };
    std::string winners;
    if (kind == 3) {
      winners = told(mlp.eight.tune({m, inner, hidden}, options)) + "; apart " +
                told(mlp.both.tune({m, 2 * inner, hidden}, options));
      mlp.activate.tune({m, inner}, options);
    } else if (kind == 2) {
      winners = told(mlp.gated_fp8.tune({m, inner, hidden}, options)) + "; " +
                told(mlp.down_fp8.tune({m, hidden, inner}, options));
      mlp.gated.tune({m, inner, hidden}, options);
      mlp.quantize.tune({m, inner}, options);
    } else if (kind == 1) {
      winners = told(mlp.gated.tune({m, inner, hidden}, options)) + "; " +
                told(mlp.down.tune({m, hidden, inner}, options));
    } else {
      winners = told(mlp.first.tune({m, inner, hidden}, options)) + "; " +
                told(mlp.second.tune({m, hidden, inner}, options));
    }
    std::snprintf(text, size, "%s", winners.c_str());
  });
}

int mlp_relu(void* handle, int untuned, void* stream, bfloat16* y, bfloat16* between,
             const bfloat16* x, const bfloat16* w1, const bfloat16* b1, const bfloat16* w2,
             const bfloat16* b2, int m, int hidden, int inner) {
  return for_python::attempt(mlp_trouble, [&] {
    const Mlps& mlps = *static_cast<Mlps*>(handle);
    const Mlp& mlp = untuned ? mlps.untuned : mlps.tuned;
    const kiln::Stream on{stream};
    mlp.first(on, between, x, w1, m, inner, hidden, b1);
    mlp.second(on, y, between, w2, m, hidden, inner, b2);
  });
}

/// `weights`: gate, and up behind it.
int mlp_gated(void* handle, int untuned, void* stream, bfloat16* y, bfloat16* between,
              const bfloat16* x, const bfloat16* weights, const bfloat16* down, int m, int hidden,
              int inner) {
  return for_python::attempt(mlp_trouble, [&] {
    const Mlps& mlps = *static_cast<Mlps*>(handle);
    const Mlp& mlp = untuned ? mlps.untuned : mlps.tuned;
    const kiln::Stream on{stream};
    mlp.gated(on, between, x, weights, m, inner, hidden);
    mlp.down(on, y, between, down, m, hidden, inner);
  });
}

/// `which`: 0 tuned, 1 untuned, 2 tuned with a product in bf16, `apart`, which a launch of its own
/// quantizes.
int mlp_gated_fp8(void* handle, int which, void* stream, bfloat16* y, float8_e4m3* between,
                  float* scales, bfloat16* apart, const bfloat16* x, const bfloat16* weights,
                  const float8_e4m3* down, const float* scales_of_down, int m, int hidden,
                  int inner) {
  return for_python::attempt(mlp_trouble, [&] {
    const Mlps& mlps = *static_cast<Mlps*>(handle);
    const Mlp& mlp = which == 1 ? mlps.untuned : mlps.tuned;
    const kiln::Stream on{stream};
    if (which == 2) {
      mlp.gated(on, apart, x, weights, m, inner, hidden);
      mlp.quantize(on, between, scales, apart, m, inner);
    } else {
      mlp.gated_fp8(on, between, x, weights, m, inner, hidden, scales);
    }
    mlp.down_fp8(on, y, between, down, m, hidden, inner, scales, scales_of_down);
  });
}

/// The first layer alone, of x and weights in 8 bits, with a scale for each row of both. `which`: 0
/// tuned, 1 untuned, 2 tuned and apart, with `both` [m][2 * inner] between two launches.
int mlp_gated_eight(void* handle, int which, void* stream, bfloat16* out, bfloat16* both,
                    const float8_e4m3* x, const float8_e4m3* weights, const float* scales_of_x,
                    const float* scales_of_weights, int m, int hidden, int inner) {
  return for_python::attempt(mlp_trouble, [&] {
    const Mlps& mlps = *static_cast<Mlps*>(handle);
    const Mlp& mlp = which == 1 ? mlps.untuned : mlps.tuned;
    const kiln::Stream on{stream};
    if (which == 2) {
      mlp.both(on, both, x, weights, m, 2 * inner, hidden, scales_of_x, scales_of_weights);
      mlp.activate(on, out, both, m, inner);
    } else {
      mlp.eight(on, out, x, weights, m, inner, hidden, scales_of_x, scales_of_weights);
    }
  });
}

}  // extern "C"
