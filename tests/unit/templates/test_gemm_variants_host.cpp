// The GEMM's other kinds on the host target: transpositions, leading dimensions, batches and
// epilogues, by every body that runs there.
#include <cmath>
#include <limits>

#include "template_test.hpp"

using namespace kiln::templates;
using kiln::bfloat16;
using template_test::Array;
using template_test::HostInstance;

namespace gemm_variants {

using namespace kiln::epilogue;

constexpr GemmBody kMma = GemmBody::mma, kSimt = GemmBody::simt, kStream = GemmBody::stream;
const std::vector<std::string> kEmulated{"-DKILN_EMULATE_MMA"};
const std::vector<std::string> kLate{"-DKILN_EMULATE_MMA", "-DKILN_LATE_COPIES"};

/// What lies between rows and batches is NaN in operands, and poison in C.
template <class T, GemmTranspose op>
std::size_t wrong_elements(const HostInstance<GemmStridedKernel<T, op>>& gemm,
                           const GemmStridedProblem& q, std::size_t offset) {
  const GemmShape<true> p = gemm_shape<op>(q);
  const auto size = [](GemmStride n) { return static_cast<std::size_t>(n); };
  Array<T> c(size(p.c_span()), offset), a(size(p.a_span(op)), offset),
      b(size(p.b_span(op)), offset);
  const T nan = T(std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = nan;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = nan;
  const auto of_a = [&](int z, int i, int l) {
    return size(z * p.stride_a + (a_across(op) ? l * p.lda + i : i * p.lda + l));
  };
  const auto of_b = [&](int z, int j, int l) {
    return size(z * p.stride_b + (b_across(op) ? l * p.ldb + j : j * p.ldb + l));
  };
  std::mt19937 random(7);
  std::uniform_int_distribution<int> pick(-2, 2);
  for (int z = 0; z < p.batch; ++z)
    for (int l = 0; l < p.k; ++l) {
      for (int i = 0; i < p.m; ++i) a[of_a(z, i, l)] = T(static_cast<float>(pick(random)));
      for (int j = 0; j < p.n; ++j) b[of_b(z, j, l)] = T(static_cast<float>(pick(random)));
    }
  Array<T> expected(c.size());
  for (int z = 0; z < p.batch; ++z)
    for (int i = 0; i < p.m; ++i)
      for (int j = 0; j < p.n; ++j) {
        float sum = 0;
        for (int l = 0; l < p.k; ++l)
          sum += static_cast<float>(a[of_a(z, i, l)]) * static_cast<float>(b[of_b(z, j, l)]);
        expected[size(z * p.stride_c + i * p.ldc + j)] = T(sum);
      }
  gemm(q, c.data(), static_cast<const T*>(a.data()), static_cast<const T*>(b.data()), q.m, q.n, q.k,
       q.ldc, q.lda, q.ldb, q.batch, q.stride_c, q.stride_a, q.stride_b);
  std::size_t wrong = c.margins_intact() ? 0 : c.size() + 1;
  for (std::size_t i = 0; i < c.size(); ++i)
    if (std::memcmp(&c[i], &expected[i], sizeof(T)) != 0 &&
        static_cast<float>(c[i]) != static_cast<float>(expected[i]))
      ++wrong;
  return wrong;
}

/// Rows of operands are followed by `gap` elements, batches by 8 more; `shared`: one B for all.
template <GemmTranspose op>
GemmStridedProblem problem(int m, int n, int k, int gap, int batch, bool shared = false) {
  GemmStridedProblem p{m, n, k, n + gap, 0, 0, batch, 0, 0, 0};
  const GemmShape<true> s = gemm_shape<op>(p);
  p.lda = s.a_row(op) + gap;
  p.ldb = s.b_row(op) + gap;
  p.stride_c = m * p.ldc + 8;
  p.stride_a = s.a_rows(op) * p.lda;
  p.stride_b = shared ? 0 : s.b_rows(op) * p.ldb + 8;
  return p;
}

template <class T, GemmTranspose op>
void check(const Gemm& config, const std::vector<std::string>& options = {}, int most_rows = 1000) {
  REQUIRE(config.takes(op));
  const auto kernel = gemm_strided_kernel<T, op>();
  const HostInstance<GemmStridedKernel<T, op>> gemm(kernel, config, options);
  for (const GemmStridedProblem& p :
       {problem<op>(64, 64, 64, 0, 1), problem<op>(64, 32, 64, 8, 2), problem<op>(1, 1, 1, 1, 2),
        problem<op>(17, 40, 72, 0, 3, true), problem<op>(70, 35, 33, 5, 2),
        problem<op>(8, 130, 40, 16, 2), problem<op>(3, 4, 0, 0, 2), problem<op>(16, 24, 8, 3, 0),
        problem<op>(7, 56, 104, 8, 1)})
    for (std::size_t offset : {0, 1}) {
      if (p.m > most_rows ||
          (config.body == kStream && (p.k == 0 || p.k % 8 != 0 || p.lda % 8 != 0)))
        continue;
      INFO(kiln::codegen::describe_instance(kernel.definition(), kiln::to_values(config))
           << " m=" << p.m << " n=" << p.n << " k=" << p.k << " lda=" << p.lda
           << " batch=" << p.batch << " offset=" << offset);
      CHECK(wrong_elements<T, op>(gemm, p, offset) == 0);
    }
}

template <class T, GemmTranspose op>
void check_bodies() {
  if constexpr (sizeof(T) == 4) check<T, op>({kSimt, 16, 32, 64, 1, 4, 4, 16, 8});
  check<T, op>({kSimt, 24, 40, 32, 4, 3, 8, 8, 3});
  if constexpr (sizeof(T) == 2) {
    check<T, op>({kMma, 64, 64, 32, 3, 32, 32, 8, 2}, kEmulated);
    check<T, op>({kMma, 16, 64, 64, 4, 16, 16, 8, 8}, kLate);
    check<T, op>({kMma, 32, 96, 48, 1, 32, 48, 8, 4}, kEmulated);
    check<T, op>({kMma, 64, 128, 64, 3, 32, 32, 8, 8});  // shared by lanes
  }
}

/// Against the reference, which test_references.cpp holds to values worked out by hand.
template <class Epilogue, class... Data>
void check_epilogue(const Gemm& config, const std::vector<std::string>& options, Data... data) {
  constexpr int m = 21, n = 40, k = 64;
  if (config.body == kStream && m > config.block_m) return;
  const auto kernel = gemm_kernel<bfloat16, GemmTranspose::nt, Epilogue>();
  INFO(kiln::codegen::describe_instance(kernel.definition(), kiln::to_values(config)));
  const HostInstance<GemmKernel<bfloat16, GemmTranspose::nt, Epilogue>> gemm(kernel, config,
                                                                             options);
  Array<bfloat16> c(m * n), expected(m * n), a(m * k), b(n * k);
  a.reals(1);
  b.reals(2);
  const bfloat16 *const of_a = a.data(), *const of_b = b.data();
  gemm({m, n, k}, c.data(), of_a, of_b, m, n, k, data...);
  kernel.reference(expected.data(), of_a, of_b, m, n, k, data...);
  int wrong = c.margins_intact() ? 0 : 1;
  for (std::size_t i = 0; i < m * n; ++i) {
    const float got = c[i], want = expected[i];
    if (!(std::abs(got - want) <= 0.02f * std::abs(want) + 0.004f)) ++wrong;
  }
  CHECK(wrong == 0);
}

void check_epilogues(const Gemm& config, const std::vector<std::string>& options = {}) {
  Array<bfloat16> data(21 * 40);
  data.reals(3);
  const bfloat16* const array = data.data();
  check_epilogue<Chain<Bias<bfloat16>, Relu, Scale, Residual<bfloat16>, Clamp>>(
      config, options, array, 0.5f, array, -8.0f, 9.0f);
  check_epilogue<Chain<RowBias<bfloat16>, Scale, Gelu, ScaledResidual<bfloat16>, Silu>>(
      config, options, array, 0.1f, array, -2.0f);
  if (config.body != kSimt) return;
  check_epilogue<Nothing>(config, options);
  check_epilogue<Bias<bfloat16>>(config, options, array);
  check_epilogue<Residual<bfloat16>>(config, options, array);
  check_epilogue<Chain<Scale, GeluTanh>>(config, options, 0.1f);
  check_epilogue<Clamp>(config, options, -3.0f, 2.0f);
}

}  // namespace gemm_variants

using gemm_variants::check_bodies, gemm_variants::check_epilogues, gemm_variants::kEmulated;

TEMPLATE_TEST_CASE("gemm: transpositions, leading dimensions and batches are exact",
                   "[templates][host]", float, bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  check_bodies<TestType, GemmTranspose::nt>();
  check_bodies<TestType, GemmTranspose::nn>();
  check_bodies<TestType, GemmTranspose::tn>();
  check_bodies<TestType, GemmTranspose::tt>();
}

TEST_CASE("gemm: streams of few rows walk leading dimensions and batches", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  gemm_variants::check<bfloat16, GemmTranspose::nt>({GemmBody::stream, 8, 16, 256, 2, 8, 64, 8, 8},
                                                    {}, 8);
  gemm_variants::check<bfloat16, GemmTranspose::nt>(
      {GemmBody::stream, 32, 32, 128, 1, 32, 64, 8, 8}, {}, 32);
}

TEST_CASE("gemm: each body applies each epilogue", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  check_epilogues({GemmBody::simt, 16, 32, 64, 1, 4, 4, 16, 8});
  check_epilogues({GemmBody::mma, 32, 64, 32, 2, 16, 32, 8, 8}, kEmulated);
  check_epilogues({GemmBody::stream, 32, 32, 128, 1, 32, 64, 8, 8});
}
