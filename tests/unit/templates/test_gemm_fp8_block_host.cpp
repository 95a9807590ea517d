// GEMMs of 8-bit floats with scales of blocks on the host target: exact on ragged problems, close
// to a product in double, what the quantizer writes, and what is refused.
#include <cmath>
#include <limits>
#include <utility>

#include "kiln/block_scales.hpp"
#include "kiln/kernels/gemm_grouped_fp8.hpp"
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
  // The second one has two slices in each block of k.
  const Gemm config = GENERATE(host_config(), Gemm{GemmBody::simt, 64, 64, 64, 2, 4, 4, 8, 8});
  CAPTURE(config.block_k);
  const HostInstance<Biased> gemm(biased_kernel(), config);
  const GemmProblem p{20, 140, 256};
  BlockArrays x(p);
  x.a[7 * 256 + 255].bits = 0x7f;
  x.b[11 * 256].bits = 0xff;
  x.scale_a(3, 1) = std::numeric_limits<float>::quiet_NaN();
  x.scale_b(130, 0) = std::numeric_limits<float>::quiet_NaN();
  x.scale_a(5, 0) = std::numeric_limits<float>::infinity();
  x.scale_a(6, 0) = std::numeric_limits<float>::infinity();
  x.scale_a(8, 1) = -0.5f;
  x.scale_a(9, 0) = x.scale_a(9, 1) = 0;
  for (std::size_t l = 0; l < 128; ++l) {
    x.a[5 * 256 + l] = x.b[9 * 256 + l] = float8_e4m3(1);
    x.a[6 * 256 + l] = float8_e4m3(l < 64 ? 1 : -2);
  }
  x.run(gemm, p);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < 20; ++i)
    for (std::size_t j = 0; j < 140; ++j) {
      const float c = float(x.c[i * 140 + j]);
      if (i != 5 && i != 6) wrong += std::isnan(c) != (i == 7 || i == 3 || j == 11 || j >= 128);
    }
  CHECK(wrong == 0);
  CHECK(float(x.c[5 * 140 + 9]) == std::numeric_limits<float>::infinity());
  CHECK(float(x.c[6 * 140 + 9]) == -std::numeric_limits<float>::infinity());
  // Scales that are negative or zero are factors like any others.
  for (const std::size_t i : {8U, 9U})
    for (std::size_t j = 12; j < 128; ++j)
      wrong += float(x.c[i * 140 + j]) != float(bfloat16(x.element<float>(i, j)));
  CHECK(wrong == 0);
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

namespace {

/// Groups of one problem against a product of each group by itself, by the kernel that has no
/// groups. Sizes are ends or counts; scales of rows that no group has are NaN.
template <GroupLayout layout>
std::size_t wrong_in_groups(const std::vector<int>& sizes, int m, int n, int k,
                            int row_alignment = 1) {
  constexpr bool masked = layout == GroupLayout::masked;
  const auto width = std::size_t(n), depth = std::size_t(k), blocks = depth / 128,
             leading = std::size_t(kiln::scale_leading(m)), groups = sizes.size(),
             rows = std::size_t(m) * (masked ? groups : 1),
             of_group = std::size_t(kiln::scale_blocks(n)) * blocks;
  Array<bfloat16> c(rows * width), bias(width);
  Array<float8_e4m3> a(rows * depth), b(groups * width * depth);
  Array<float> scales_a((masked ? groups : 1) * blocks * leading), scales_b(groups * of_group);
  a.integers(2, 1);
  b.integers(2, 2);
  bias.integers(3, 3);
  for (std::size_t i = 0; i < scales_b.size(); ++i)
    scales_b[i] = std::ldexp(1.0f, int((3 * i + i / of_group) % 5) - 2);
  for (std::size_t i = 0; i < scales_a.size(); ++i) scales_a[i] = NAN;
  for (std::size_t i = 0; i < rows * width; ++i) c[i] = bfloat16(-77.0f);
  std::vector<float> want(rows * width, -77.0f);
  for (std::size_t g = 0, begin = 0; g < groups; ++g) {
    std::size_t end = std::size_t(sizes[g]);
    if (masked) begin = g * std::size_t(m), end += begin;
    while (begin % std::size_t(row_alignment) != 0) ++begin;
    if (end < begin) continue;  // an empty one
    const std::size_t first = masked ? g * blocks * leading - begin : 0;
    BlockArrays own({int(end - begin), n, k});
    for (std::size_t i = begin; i < end; ++i)
      for (std::size_t l = 0; l < blocks; ++l)
        own.scale_a(i - begin, l) = scales_a[first + i + l * leading] =
            std::ldexp(1.0f, int((i + 3 * l) % 5) - 2);
    for (std::size_t i = 0; i < own.a.size(); ++i) own.a[i] = a[begin * depth + i];
    for (std::size_t i = 0; i < own.b.size(); ++i) own.b[i] = b[g * width * depth + i];
    for (std::size_t i = 0; i < of_group; ++i) own.scales_b[i] = scales_b[g * of_group + i];
    for (std::size_t i = begin; i < end; ++i)
      for (std::size_t j = 0; j < width; ++j)
        want[i * width + j] = float(bfloat16(own.template element<float>(i - begin, j)));
    begin = end;
  }
  const auto given = []<class T>(Array<T>& array) { return static_cast<const T*>(array.data()); };
  if constexpr (masked) {
    using K = GemmMaskedFp8BlockKernel<kiln::epilogue::Bias<bfloat16>>;
    const auto kernel = gemm_masked_fp8_block_kernel<kiln::epilogue::Bias<bfloat16>>();
    const HostInstance<K> gemm(kernel, kernel.space.default_config(kiln::Target::Kind::host));
    gemm(MaskedProblem{m, n, k, int(groups), 0}, c.data(), given(a), given(b), sizes.data(), m, n,
         k, int(groups), 0, given(scales_a), given(scales_b), given(bias));
  } else if constexpr (layout == GroupLayout::padded) {
    using K = GemmPaddedFp8BlockKernel<kiln::epilogue::Bias<bfloat16>>;
    const auto kernel = gemm_padded_fp8_block_kernel<kiln::epilogue::Bias<bfloat16>>();
    const HostInstance<K> gemm(kernel, kernel.space.default_config(kiln::Target::Kind::host));
    gemm(PaddedProblem{m, n, k, int(groups), row_alignment}, c.data(), given(a), given(b),
         sizes.data(), m, n, k, int(groups), row_alignment, given(scales_a), given(scales_b),
         given(bias));
  } else {
    using K = GemmGroupedFp8BlockKernel<kiln::epilogue::Bias<bfloat16>>;
    const auto kernel = gemm_grouped_fp8_block_kernel<kiln::epilogue::Bias<bfloat16>>();
    const HostInstance<K> gemm(kernel, kernel.space.default_config(kiln::Target::Kind::host));
    gemm(GroupedProblem{m, n, k, int(groups)}, c.data(), given(a), given(b), sizes.data(), m, n, k,
         int(groups), given(scales_a), given(scales_b), given(bias));
  }
  std::size_t wrong = c.margins_intact() ? 0 : want.size() + 1;
  for (std::size_t i = 0; i < want.size(); ++i) wrong += !(float(c[i]) == want[i]);
  return wrong;
}

}  // namespace

TEST_CASE("grouped gemm with scales of blocks: each group has its own, and no others are read",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  CHECK(wrong_in_groups<GroupLayout::contiguous>({7, 7, 8, 40, 47}, 50, 133, 256) ==
        0);  // three rows are nobody's
  CHECK(wrong_in_groups<GroupLayout::contiguous>({3}, 3, 4, 128) == 0);
  CHECK(wrong_in_groups<GroupLayout::padded>({7, 7, 17, 40, 67}, 70, 133, 256, 16) == 0);
  CHECK(wrong_in_groups<GroupLayout::padded>({3, 9}, 9, 4, 128, 6) == 0);
  CHECK(wrong_in_groups<GroupLayout::masked>({0, 17, 1, 16, 5}, 18, 133, 256) == 0);
  CHECK(wrong_in_groups<GroupLayout::masked>({5, 2}, 5, 4, 384) == 0);
}

TEST_CASE("grouped gemm with scales of blocks: data, epilogues, verdicts and refusals",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto right = [&](const auto& kernel, const auto& problem) {
    const kiln::Verification v = runtime.tuned(kernel).verify(problem);
    INFO(kernel.name << ": " << v.why);
    CHECK(v.right);
  };
  for (const GroupedProblem& p :
       {GroupedProblem{100, 140, 256, 7}, {3, 8, 128, 5}, {20, 8, 128, 0}, {6, 4, 0, 2}})
    right(gemm_grouped_fp8_block_kernel<kiln::epilogue::Gelu>(), p);
  for (const PaddedProblem& p : {PaddedProblem{100, 140, 256, 7, 16}, {3, 8, 128, 5, 128}})
    right(gemm_padded_fp8_block_kernel<kiln::epilogue::Gelu>(), p);
  for (const MaskedProblem& p : {MaskedProblem{21, 140, 256, 5, 8}, {8, 8, 128, 0, 1}})
    right(gemm_masked_fp8_block_kernel<>(), p);
  std::vector<bfloat16> c(64);
  std::vector<float8_e4m3> a(8 * 256), b(16 * 256);
  std::vector<float> scales(64);
  const std::vector<int> ends{4, 8};
  const auto gemm = runtime.tuned(gemm_grouped_fp8_block_kernel<>());
  CHECK_THAT(template_test::refusal([&] {
               gemm({}, c.data(), std::as_const(a).data(), std::as_const(b).data(), ends.data(), 8,
                    8, 200, 2, std::as_const(scales).data(), std::as_const(scales).data());
             }),
             Catch::Contains("k is 200"));
  const auto padded = runtime.tuned(gemm_padded_fp8_block_kernel<>());
  CHECK_THAT(template_test::refusal([&] {
               padded({}, c.data(), std::as_const(a).data(), std::as_const(b).data(), ends.data(),
                      8, 8, 200, 2, 4, std::as_const(scales).data(), std::as_const(scales).data());
             }),
             Catch::Contains("k is 200"));
  const auto masked = runtime.tuned(gemm_masked_fp8_block_kernel<>());
  CHECK_THAT(template_test::refusal([&] {
               masked({}, c.data(), std::as_const(a).data(), std::as_const(b).data(), ends.data(),
                      4, 8, 200, 2, 0, std::as_const(scales).data(), std::as_const(scales).data());
             }),
             Catch::Contains("k is 200"));
}

TEST_CASE("gemm with scales of blocks: a runtime verifies it, and refuses what it cannot be",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
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
    return template_test::refusal([&] {
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
