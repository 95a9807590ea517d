// GEMMs of 8-bit floats with scales of blocks on the host target: exact on ragged problems, close
// to a product in double, what the quantizer writes, and what is refused.
#include <cmath>
#include <limits>

#include "kiln/block_scales.hpp"
#include "kiln/runtime.hpp"
#include "template_test.hpp"

using namespace kiln::templates;
using kiln::bfloat16, kiln::float8_e4m3;
using template_test::Array;
using template_test::HostInstance;

namespace {

using Biased = GemmFp8BlockKernel<kiln::epilogue::Bias<bfloat16>>;

Biased biased_kernel() { return gemm_fp8_block_kernel<kiln::epilogue::Bias<bfloat16>>(); }
Gemm host_config() { return biased_kernel().space.default_config(kiln::Target::Kind::host); }

/// What lies behind the rows of A's scales is NaN, as the margins of arrays are.
struct BlockArrays {
  explicit BlockArrays(const GemmProblem& p, std::size_t offset = 0)
      : m(std::size_t(p.m)),
        n(std::size_t(p.n)),
        k(std::size_t(p.k)),
        leading(std::size_t(kiln::scale_leading(p.m))),
        c(m * n, offset),
        a(m * k, offset),
        b(n * k, offset),
        bias(n, offset),
        scales_a(k / 128 * leading, offset),
        scales_b(std::size_t(kiln::scale_blocks(p.n)) * (k / 128), offset) {
    a.integers(2, 1);
    b.integers(2, 2);
    bias.integers(3, 3);
    const auto power = [](std::size_t i) { return std::ldexp(1.0f, int(i % 5) - 2); };
    for (std::size_t l = 0; l < k / 128; ++l) {
      for (std::size_t i = 0; i < m; ++i) scale_a(i, l) = power(i + 3 * l);
      for (std::size_t j = 0; j < n; j += 128) scale_b(j, l) = power(2 * (j / 128) + l);
    }
  }
  float& scale_a(std::size_t row, std::size_t block) { return scales_a[block * leading + row]; }
  float& scale_b(std::size_t column, std::size_t block) {
    return scales_b[column / 128 * (k / 128) + block];
  }
  template <class T>
  T element(std::size_t i, std::size_t j) {
    T sum = 0;
    for (std::size_t block = 0; block < k / 128; ++block) {
      T products = 0;
      for (std::size_t l = block * 128; l < (block + 1) * 128; ++l)
        products += static_cast<T>(float(a[i * k + l])) * static_cast<T>(float(b[j * k + l]));
      sum += products * static_cast<T>(scale_a(i, block)) * static_cast<T>(scale_b(j, block));
    }
    return sum + static_cast<T>(float(bias[j]));
  }
  void run(const HostInstance<Biased>& gemm, const GemmProblem& p) {
    gemm(p, c.data(), static_cast<const float8_e4m3*>(a.data()),
         static_cast<const float8_e4m3*>(b.data()), p.m, p.n, p.k,
         static_cast<const float*>(scales_a.data()), static_cast<const float*>(scales_b.data()),
         static_cast<const bfloat16*>(bias.data()));
  }

  std::size_t m, n, k, leading;
  Array<bfloat16> c;
  Array<float8_e4m3> a, b;
  Array<bfloat16> bias;
  Array<float> scales_a, scales_b;
};

kiln::Runtime host_runtime() {
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  options.mode = kiln::Mode::untuned;
  return kiln::Runtime(options);
}

template <class Call>
std::string why_refused(const Call& call) {
  try {
    call();
  } catch (const kiln::UserError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("gemm with scales of blocks: the simt body is exact on ragged problems",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (const Gemm& config : std::vector<Gemm>{host_config(),
                                              {GemmBody::simt, 64, 64, 64, 2, 4, 4, 8, 8},
                                              {GemmBody::simt, 24, 40, 32, 4, 3, 8, 4, 3}}) {
    const HostInstance<Biased> gemm(biased_kernel(), config);
    for (const GemmProblem& p : std::vector<GemmProblem>{
             {64, 64, 128}, {1, 1, 128}, {17, 133, 256}, {130, 31, 384}, {5, 260, 128}, {3, 4, 0}})
      for (std::size_t offset : {0, 1}) {
        CAPTURE(config.block_m, p.m, p.n, p.k, offset);
        BlockArrays x(p, offset);
        x.run(gemm, p);
        std::size_t wrong = x.c.margins_intact() ? 0 : x.c.size() + 1;
        for (std::size_t i = 0; i < x.m; ++i)
          for (std::size_t j = 0; j < x.n; ++j)
            wrong += !(float(x.c[i * x.n + j]) == float(bfloat16(x.element<float>(i, j))));
        CHECK(wrong == 0);
      }
  }
}

TEST_CASE("gemm with scales of blocks is close to the product in double", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const HostInstance<Biased> gemm(biased_kernel(), host_config());
  const GemmProblem p{50, 150, 1024};
  BlockArrays x(p);
  std::mt19937 random(5);
  std::uniform_real_distribution<float> of_scales(0.02f, 1);
  x.a.reals(1);
  x.b.reals(2);
  for (std::size_t l = 0; l < 8; ++l) {
    for (std::size_t i = 0; i < x.m; ++i) x.scale_a(i, l) = of_scales(random);
    for (std::size_t j = 0; j < x.n; j += 128) x.scale_b(j, l) = of_scales(random);
  }
  x.run(gemm, p);
  double difference = 0, square = 0;
  for (std::size_t i = 0; i < x.m; ++i)
    for (std::size_t j = 0; j < x.n; ++j) {
      const double want = x.element<double>(i, j);
      difference += std::pow(double(float(x.c[i * x.n + j])) - want, 2);
      square += want * want;
    }
  CHECK(std::sqrt(difference / square) < 2e-3);  // of which rounding to bfloat16 is 1.7e-3
}

TEST_CASE("gemm with scales of blocks: NaNs and infinite scales stay where they belong",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const HostInstance<Biased> gemm(biased_kernel(), host_config());
  const GemmProblem p{20, 140, 256};
  BlockArrays x(p);
  x.a[7 * 256 + 255].bits = 0x7f;
  x.b[11 * 256].bits = 0xff;
  x.scale_a(3, 1) = std::numeric_limits<float>::quiet_NaN();
  x.scale_b(130, 0) = std::numeric_limits<float>::quiet_NaN();
  x.scale_a(5, 0) = std::numeric_limits<float>::infinity();
  for (std::size_t l = 0; l < 128; ++l) x.a[5 * 256 + l] = x.b[9 * 256 + l] = float8_e4m3(1);
  x.run(gemm, p);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < 20; ++i)
    for (std::size_t j = 0; j < 140; ++j) {
      const float c = float(x.c[i * 140 + j]);
      if (i != 5) wrong += std::isnan(c) != (i == 7 || i == 3 || j == 11 || j >= 128);
    }
  CHECK(wrong == 0);
  CHECK(float(x.c[5 * 140 + 9]) == std::numeric_limits<float>::infinity());
}

TEST_CASE("gemm with scales of blocks reads those that quantize_blocks writes", "[templates]") {
  const GemmProblem p{6, 200, 384};
  const std::size_t m = 6, n = 200, k = 384, blocks = 3;
  std::vector<float> x(m * k), weights(n * k);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < m * k; ++i)  // each block is of another order
    x[i] = normal(random) * std::pow(10.0f, float((i / k + 2 * (i % k / 128)) % 5) - 2);
  for (float& w : weights) w = normal(random);
  std::vector<float8_e4m3> a(m * k), b(n * k);
  std::vector<float> scales_a(blocks * std::size_t(kiln::scale_leading(p.m)), NAN),
      scales_b(2 * blocks, 1.0f / 64);
  quantize_blocks_kernel<float>().reference(a.data(), scales_a.data(), x.data(), p.m, p.k);
  for (std::size_t i = 0; i < n * k; ++i) b[i] = float8_e4m3(weights[i] * 64);
  std::vector<bfloat16> c(m * n);
  gemm_fp8_block_kernel<>().reference(c.data(), a.data(), b.data(), p.m, p.n, p.k, scales_a.data(),
                                      scales_b.data());
  double difference = 0, square = 0;
  for (std::size_t i = 0; i < m; ++i) {
    double of_row = 0, most = 0;
    for (std::size_t j = 0; j < n; ++j) {
      double want = 0;
      for (std::size_t l = 0; l < k; ++l) want += double(x[i * k + l]) * double(weights[j * k + l]);
      of_row += std::pow(double(float(c[i * n + j])) - want, 2);
      most += want * want;
    }
    difference += of_row / most;  // rows are of different orders, too
    square += 1;
  }
  CHECK(std::sqrt(difference / square) < 0.06);  // three bits of a fraction, twice
}

TEST_CASE("gemm with scales of blocks: a runtime verifies it, and refuses what it cannot be",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = host_runtime();
  const auto gemm = runtime.tuned(gemm_fp8_block_kernel<>());
  for (const GemmProblem& p : std::vector<GemmProblem>{{39, 200, 384}, {1, 8, 128}}) {
    const kiln::Verification v = gemm.verify(p);
    INFO(v.why);
    CHECK(v.right);
  }
  std::vector<bfloat16> c(8 * 8);
  std::vector<float8_e4m3> a(8 * 256), b(8 * 256);
  std::vector<float> scales(64);
  const auto launch = [&](int k, const float* of_a, const float* of_b) {
    return why_refused([&] {
      gemm({}, c.data(), static_cast<const float8_e4m3*>(a.data()),
           static_cast<const float8_e4m3*>(b.data()), 8, 8, k, of_a, of_b);
    });
  };
  const float* const in_c = reinterpret_cast<const float*>(c.data());
  CHECK_THAT(launch(200, scales.data(), scales.data()),
             Catch::Contains("k is 200") && Catch::Contains("multiple of 128"));
  CHECK_THAT(launch(256, in_c, scales.data()), Catch::Contains("overlaps"));
  CHECK_THAT(launch(256, scales.data(), in_c), Catch::Contains("overlaps"));
  CHECK(launch(256, scales.data(), scales.data()) == "accepted");
}
