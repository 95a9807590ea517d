// GEMMs of 8-bit floats on the host target: exact on ragged problems, and what NaNs, zeros and
// scales make of them.
#include <cmath>
#include <limits>

#include "template_test.hpp"

using namespace kiln::templates;
using kiln::bfloat16, kiln::float8_e4m3;
using kiln::epilogue::RowScales;
using template_test::Array;
using template_test::HostInstance;

namespace {

using Rows = GemmFp8Kernel<RowScales>;

struct Arrays {
  Arrays(const GemmProblem& p, std::size_t offset)
      : c(std::size_t(p.m) * std::size_t(p.n), offset),
        a(std::size_t(p.m) * std::size_t(p.k), offset),
        b(std::size_t(p.n) * std::size_t(p.k), offset),
        scales_a(std::size_t(p.m)),
        scales_b(std::size_t(p.n)) {
    a.integers(2, 1);
    b.integers(2, 2);
    for (std::size_t i = 0; i < scales_a.size(); ++i) scales_a[i] = i % 3 == 0 ? -0.5f : 2.0f;
    for (std::size_t j = 0; j < scales_b.size(); ++j) scales_b[j] = j % 5 == 0 ? 0.25f : 1.0f;
  }
  void run(const HostInstance<Rows>& gemm, const GemmProblem& p) {
    gemm(p, c.data(), static_cast<const float8_e4m3*>(a.data()),
         static_cast<const float8_e4m3*>(b.data()), p.m, p.n, p.k,
         static_cast<const float*>(scales_a.data()), static_cast<const float*>(scales_b.data()));
  }
  Array<bfloat16> c;
  Array<float8_e4m3> a, b;
  Array<float> scales_a, scales_b;
};

std::size_t wrong_elements(const HostInstance<Rows>& gemm, const GemmProblem& p,
                           std::size_t offset) {
  const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n),
             k = static_cast<std::size_t>(p.k);
  Arrays x(p, offset);
  x.run(gemm, p);
  std::size_t wrong = x.c.margins_intact() ? 0 : m * n + 1;
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::size_t l = 0; l < k; ++l)
        sum += static_cast<float>(x.a[i * k + l]) * static_cast<float>(x.b[j * k + l]);
      const bfloat16 want(sum * (x.scales_a[i] * x.scales_b[j]));
      if (!(static_cast<float>(x.c[i * n + j]) == static_cast<float>(want))) ++wrong;
    }
  return wrong;
}

}  // namespace

TEST_CASE("gemm of 8-bit floats: the simt body is exact on ragged problems", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (const Gemm& config : std::vector<Gemm>{
           Rows(gemm_fp8_kernel<RowScales>()).space.default_config(kiln::Target::Kind::host),
           {GemmBody::simt, 64, 64, 64, 2, 4, 4, 8, 8},
           {GemmBody::simt, 24, 40, 32, 4, 3, 8, 4, 3}}) {
    const HostInstance<Rows> gemm(gemm_fp8_kernel<RowScales>(), config);
    for (const GemmProblem& p : std::vector<GemmProblem>{
             {64, 64, 128}, {1, 1, 1}, {17, 33, 40}, {130, 31, 104}, {5, 130, 33}, {3, 4, 0}})
      for (std::size_t offset : {0, 1}) {
        CAPTURE(config.block_m, p.m, p.n, p.k, offset);
        CHECK(wrong_elements(gemm, p, offset) == 0);
      }
  }
}

TEST_CASE("gemm of 8-bit floats: each value counts as what it is", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const Rows kernel = gemm_fp8_kernel<RowScales>();
  const HostInstance<Rows> gemm(kernel, kernel.space.default_config(kiln::Target::Kind::host));
  // Row i of A holds the number with the bits i, and B ones, so that each row of C is that number.
  const GemmProblem p{256, 32, 1};
  Arrays x(p, 0);
  for (std::size_t i = 0; i < 256; ++i) {
    x.a[i].bits = static_cast<std::uint8_t>(i);
    x.scales_a[i] = 1;
  }
  for (std::size_t j = 0; j < 32; ++j) {
    x.b[j] = float8_e4m3(1);
    x.scales_b[j] = 1;
  }
  x.run(gemm, p);
  for (std::size_t i = 0; i < 256; ++i) {
    CAPTURE(i);
    const float want = static_cast<float>(x.a[i]), got = static_cast<float>(x.c[i * 32 + 31]);
    CHECK((std::isnan(want) ? std::isnan(got) : got == want));
  }
}

TEST_CASE("gemm of 8-bit floats: one NaN makes one row and column of NaNs", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const Rows kernel = gemm_fp8_kernel<RowScales>();
  const HostInstance<Rows> gemm(kernel, kernel.space.default_config(kiln::Target::Kind::host));
  const GemmProblem p{20, 40, 100};
  Arrays x(p, 0);
  x.a[7 * 100 + 99].bits = 0x7f;
  x.b[11 * 100].bits = 0xff;
  x.scales_a[3] = 0;
  x.scales_b[5] = std::numeric_limits<float>::quiet_NaN();
  x.run(gemm, p);
  for (std::size_t i = 0; i < 20; ++i)
    for (std::size_t j = 0; j < 40; ++j) {
      CAPTURE(i, j);
      const float c = static_cast<float>(x.c[i * 40 + j]);
      CHECK(std::isnan(c) == (i == 7 || j == 11 || j == 5));
      if (i == 3 && !std::isnan(c)) CHECK(c == 0);
    }
}

TEST_CASE("gemm of 8-bit floats: a tensor's scale is a factor, whatever it is",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  using kiln::epilogue::TensorScales;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInfinity = std::numeric_limits<float>::infinity();
  const auto kernel = gemm_fp8_kernel<TensorScales>();
  const HostInstance<GemmFp8Kernel<TensorScales>> gemm(
      kernel, kernel.space.default_config(kiln::Target::Kind::host));
  const GemmProblem p{3, 4, 8};
  Array<float8_e4m3> a(3 * 8), b(4 * 8);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = float8_e4m3(i < 8 ? 0.0f : 1.0f);  // a row of 0
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = float8_e4m3(0.5f);
  for (const auto& [of_a, of_b] : std::vector<std::pair<float, float>>{
           {2, 3}, {0, 3}, {-0.25f, 8}, {kInfinity, 1}, {-kInfinity, -1}, {1, kNan}, {1e-40f, 1}}) {
    CAPTURE(of_a, of_b);
    Array<bfloat16> c(3 * 4);
    gemm(p, c.data(), static_cast<const float8_e4m3*>(a.data()),
         static_cast<const float8_e4m3*>(b.data()), 3, 4, 8, &of_a, &of_b);
    for (std::size_t i = 0; i < c.size(); ++i) {
      const float want = (i < 4 ? 0.0f : 4.0f) * (of_a * of_b), got = static_cast<float>(c[i]);
      CHECK((std::isnan(want) ? std::isnan(got) : got == static_cast<float>(bfloat16(want))));
    }
  }
}
