// gemm on the host target: the simt body, and the mma body with tensor cores emulated lane by lane.
#include "template_test.hpp"

using namespace kiln::templates;
using template_test::Array;
using template_test::HostInstance;

namespace {

constexpr GemmBody kMma = GemmBody::mma, kSimt = GemmBody::simt, kShift = GemmBody::shift;

/// Counts wrong elements; on integers the right ones are exact.
template <class T>
std::size_t wrong_elements(const HostInstance<GemmKernel<T>>& gemm, const GemmProblem& p,
                           std::size_t offset) {
  const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n),
             k = static_cast<std::size_t>(p.k);
  Array<T> c(m * n, offset), a(m * k, offset), b(n * k, offset);
  a.integers(2, 1);
  b.integers(2, 2);
  gemm(p, c.data(), static_cast<const T*>(a.data()), static_cast<const T*>(b.data()), p.m, p.n,
       p.k);
  std::size_t wrong = c.margins_intact() ? 0 : m * n + 1;
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::size_t l = 0; l < k; ++l)
        sum += static_cast<float>(a[i * k + l]) * static_cast<float>(b[j * k + l]);
      if (!(static_cast<float>(c[i * n + j]) == static_cast<float>(T(sum)))) ++wrong;
    }
  return wrong;
}

template <class T>
void check(const Gemm& config, const std::vector<std::string>& options = {}) {
  const HostInstance<GemmKernel<T>> gemm(gemm_kernel<T>(), config, options);
  // Whole tiles; one of everything; ragged m, n, k in turn; k that no access divides; no k at all.
  for (const GemmProblem& p : std::vector<GemmProblem>{{64, 64, 128},
                                                       {1, 1, 1},
                                                       {17, 64, 64},
                                                       {64, 33, 64},
                                                       {16, 64, 72},
                                                       {70, 35, 33},
                                                       {5, 130, 40},
                                                       {130, 31, 104},
                                                       {33, 65, 67},
                                                       {9, 40, 191},
                                                       {3, 4, 0}})
    for (std::size_t offset : {0, 1}) {
      INFO(kiln::codegen::describe_instance(gemm_kernel<T>().definition(), kiln::to_values(config))
           << " m=" << p.m << " n=" << p.n << " k=" << p.k << " offset=" << offset);
      CHECK(wrong_elements<T>(gemm, p, offset) == 0);
    }
}

}  // namespace

TEMPLATE_TEST_CASE("gemm: the simt body is exact on ragged problems", "[templates][host]", float,
                   kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  check<TestType>({kSimt, 16, 32, 64, 1, 4, 4, 16, 8});
  check<TestType>({kSimt, 32, 64, 32, 2, 4, 4, 8, 2});
  check<TestType>({kSimt, 16, 16, 16, 3, 8, 2, 8, 1});
  check<TestType>({kSimt, 24, 40, 32, 4, 3, 8, 8, 3});  // threads do not divide the packs
}

TEMPLATE_TEST_CASE("gemm: the mma body is exact with emulated tensor cores", "[templates][host]",
                   kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  // Copies that land at the earliest moment show buffers reused too soon, at the latest moment
  // waits that are missing.
  const std::vector<std::string> early{"-DKILN_EMULATE_MMA"},
      late{"-DKILN_EMULATE_MMA", "-DKILN_LATE_COPIES"};
  for (const auto& options : {early, late}) {
    check<TestType>({kMma, 64, 64, 32, 3, 32, 32, 8, 2}, options);
    check<TestType>({kMma, 16, 64, 64, 4, 16, 16, 8, 8}, options);
    check<TestType>({kMma, 32, 32, 16, 2, 16, 32, 8, 1}, options);
    check<TestType>({kMma, 32, 96, 48, 1, 32, 48, 8, 4}, options);
    check<TestType>({kMma, 128, 32, 16, 5, 64, 16, 8, 4}, options);
  }
}

TEMPLATE_TEST_CASE("gemm: the shift body is exact, whatever rows begin at", "[templates][host]",
                   kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const std::vector<std::string> early{"-DKILN_EMULATE_MMA"},
      late{"-DKILN_EMULATE_MMA", "-DKILN_LATE_COPIES"};
  for (const auto& options : {early, late}) {
    check<TestType>({kShift, 64, 64, 32, 3, 32, 32, 8, 2}, options);
    check<TestType>({kShift, 16, 64, 64, 4, 16, 16, 8, 8}, options);
    check<TestType>({kShift, 16, 32, 64, 2, 16, 16, 8, 8}, options);
    check<TestType>({kShift, 128, 32, 64, 5, 32, 16, 8, 4}, options);
  }
  check<TestType>({kShift, 32, 64, 32, 2, 16, 32, 8, 8});
}

TEST_CASE("gemm: configs of the mma body run on the host as they are", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  check<kiln::bfloat16>(gemm_kernel<kiln::bfloat16>().space.default_config());
  check<kiln::float16>({kMma, 32, 48, 32, 2, 16, 48, 8, 8});
}
