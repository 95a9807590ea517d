// The two-layer perceptron of the tutorials, y = relu(x * W1^T + b1) * W2^T + b2, in two kernels.
// The first product includes bias and ReLU, the second its bias. Both kernels are chosen where they
// run, one after the other, in a region.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "kiln/kernels/gemm.hpp"
#include "kiln/kiln.hpp"

int main() try {
  using kiln::epilogue::Bias, kiln::epilogue::Chain, kiln::epilogue::Relu;
  using kiln::templates::gemm_kernel, kiln::templates::GemmTranspose;
  using T = kiln::bfloat16;
  kiln::Runtime runtime;
  auto hidden_layer = runtime.tuned(gemm_kernel<T, GemmTranspose::nt, Chain<Bias<T>, Relu>>());
  auto output_layer = runtime.tuned(gemm_kernel<T, GemmTranspose::nt, Bias<T>>());

  // On a CPU smaller ones do.
  const bool gpu = runtime.device().target.kind == kiln::Target::Kind::cuda;
  const int batch = gpu ? 256 : 16, features = gpu ? 1024 : 64;
  auto random = [state = 1u](std::size_t count, float scale) mutable {
    std::vector<T> values(count);
    for (T& value : values) {
      state = state * 1664525 + 1013904223;
      value = T(scale * (static_cast<float>(state >> 8) / (1 << 23) - 1));
    }
    return values;
  };
  const auto size = static_cast<std::size_t>(features);
  const float scale = 1 / std::sqrt(static_cast<float>(features));
  const auto x0 = random(size * static_cast<std::size_t>(batch), 1);
  const auto w1 = random(size * size, scale), b1 = random(size, 1);
  const auto w2 = random(size * size, scale), b2 = random(size, 1);

  auto x = runtime.array(x0), hidden = runtime.array(x0), y = runtime.array(x0);
  auto weight1 = runtime.array(w1), bias1 = runtime.array(b1);
  auto weight2 = runtime.array(w2), bias2 = runtime.array(b2);
  const auto forward = [&](kiln::Region& region) {
    const kiln::Stream stream{};
    region(hidden_layer, stream, hidden.data(), x.data(), weight1.data(), batch, features, features,
           bias1.data());
    region(output_layer, stream, y.data(), hidden.data(), weight2.data(), batch, features, features,
           bias2.data());
  };

  // A row of the batch, in double.
  const auto expected = [&](std::size_t row) {
    const auto layer = [&](const std::vector<double>& in, const auto& w, const auto& b) {
      std::vector<double> out(size);
      for (std::size_t j = 0; j < size; ++j) {
        out[j] = static_cast<float>(b[j]);
        for (std::size_t l = 0; l < size; ++l)
          out[j] += in[l] * static_cast<double>(static_cast<float>(w[j * size + l]));
      }
      return out;
    };
    std::vector<double> in(size);
    for (std::size_t l = 0; l < size; ++l) in[l] = static_cast<float>(x0[row * size + l]);
    std::vector<double> between = layer(in, w1, b1);
    for (double& value : between) value = value > 0 ? value : 0;
    return layer(between, w2, b2);
  };
  const auto last = static_cast<std::size_t>(batch - 1);
  const auto want = expected(last);
  const auto check = [&]() -> std::string {
    const auto got = y.download();
    for (std::size_t j = 0; j < size; ++j)
      if (!(std::abs(static_cast<double>(static_cast<float>(got[last * size + j])) - want[j]) <
            0.03))
        return "y[" + std::to_string(j) + "] is wrong";
    return "";
  };

  kiln::RegionOptions options;
  options.max_evaluations = gpu ? 24 : 2;  // of each layer
  options.check = check;
  const kiln::RegionResult result = kiln::tune_region(runtime, forward, options);
  for (const kiln::RegionSite& site : result.sites)
    std::printf("%s: %s, %.2f times the default's speed\n", site.tuned.kernel.c_str(),
                site.tuned.describe(site.tuned.winner()).c_str(), site.tuned.speedup());

  kiln::Region production;
  y.upload(x0);
  forward(production);
  runtime.synchronize();
  return check().empty() ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
