// Two-layer perceptrons in bf16 for scripts/mlp.py: y = relu(x * W1^T + b1) * W2^T + b2, and gated
// ones, y = (silu(x * gate^T) * (x * up^T)) * down^T. See gemm_rows.cpp.
#include <cstdio>
#include <string>

#include "for_python.hpp"
#include "kiln/epilogue.hpp"
#include "kiln/kernels/gemm.hpp"
#include "kiln/kernels/gemm_gated.hpp"
#include "kiln/kiln.hpp"

namespace {

using kiln::bfloat16;
using kiln::epilogue::Bias, kiln::epilogue::Chain, kiln::epilogue::Relu, kiln::epilogue::Silu;
using kiln::templates::gemm_kernel, kiln::templates::gemm_gated_kernel,
    kiln::templates::GemmTranspose;

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

/// `text` receives the winners of both layers. `gated`: else with ReLU and biases.
int mlp_tune(void* handle, int gated, int m, int hidden, int inner, double seconds, char* text,
             std::size_t size) {
  return for_python::attempt(mlp_trouble, [&] {
    const Mlp& mlp = static_cast<Mlps*>(handle)->tuned;
    kiln::TuneOptions options;
    options.max_seconds = seconds / 2;
    const auto told = [&](const kiln::TuneResult& result) {
      return result.describe(result.winner());
    };
    std::string winners;
    if (gated)
      winners = told(mlp.gated.tune({m, inner, hidden}, options)) + "; " +
                told(mlp.down.tune({m, hidden, inner}, options));
    else
      winners = told(mlp.first.tune({m, inner, hidden}, options)) + "; " +
                told(mlp.second.tune({m, hidden, inner}, options));
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

}  // extern "C"
