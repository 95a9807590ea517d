// A linear layer in one kernel: C = leaky_relu(A * B + bias). Its epilogue is the program's own.
#include <cmath>
#include <cstdio>
#include <vector>

#include "kiln/kernels/gemm.hpp"
#include "kiln/kiln.hpp"
#include "leaky_relu.hpp"

int main() try {
  using kiln::templates::gemm_kernel, kiln::templates::GemmTranspose;
  kiln::RuntimeOptions options;
  options.tuning.max_evaluations = 12;
  kiln::Runtime runtime(options);

  using BiasLeaky = kiln::epilogue::Chain<kiln::epilogue::Bias<float>, LeakyRelu>;
  auto gemm = runtime.tuned(
      gemm_kernel<float, GemmTranspose::nn, BiasLeaky>(EXAMPLES_DIR "/leaky_relu.hpp"));

  const int m = 64, n = 96, k = 128;
  auto a = runtime.array(std::vector<float>(m * k, 0.5f));
  auto b = runtime.array(std::vector<float>(k * n, -0.25f));
  auto bias = runtime.array(std::vector<float>(n, 4.0f));
  auto c = runtime.array<float>(m * n);
  // The epilogues' arguments follow the GEMM's own, in their order.
  gemm(kiln::Stream{}, c.data(), a.data(), b.data(), m, n, k, bias.data(), 0.1f);
  runtime.synchronize();

  const float got = c.download()[n + 1], expected = 0.1f * (k * 0.5f * -0.25f + 4.0f);
  std::printf("c[1][1] = %g\n", static_cast<double>(got));
  return std::abs(got - expected) < 1e-4f ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
