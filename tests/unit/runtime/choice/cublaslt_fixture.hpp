// A choice between cuBLASLt, of which a script stands in for the library, and an own way.
#pragma once

#include <array>
#include <map>

#include <dlfcn.h>

#include "choice_fixture.hpp"
#include "fake_cublaslt.hpp"
#include "kiln_test.hpp"

namespace kiln::test {
struct ProductProblem {
  int m, n, k, at, bt, gap, batch;
};
}  // namespace kiln::test
KILN_PROBLEM(kiln::test::ProductProblem, m, n, k, at, bt, gap, batch)

namespace kiln::test {

inline MatrixProduct product_of(const ProductProblem& p) {
  MatrixProduct d{.m = p.m,
                  .n = p.n,
                  .k = p.k,
                  .a_transposed = p.at != 0,
                  .b_transposed = p.bt != 0,
                  .ldc = p.n + p.gap,
                  .lda = (p.at ? p.m : p.k) + p.gap,
                  .ldb = (p.bt ? p.k : p.n) + p.gap,
                  .batch = p.batch};
  d.stride_c = d.m * d.ldc;
  d.stride_a = (p.at ? d.k : d.m) * d.lda;
  d.stride_b = (p.bt ? d.n : d.k) * d.ldb;
  return d;
}

template <class C, class A, class B>
void multiply(const ProductProblem& p, C* c, const A* a, const B* b, float scale = 1) {
  const MatrixProduct d = product_of(p);
  for (std::int64_t batch = 0; batch < d.batch; ++batch)
    for (std::int64_t i = 0; i < d.m; ++i)
      for (std::int64_t j = 0; j < d.n; ++j) {
        float sum = 0;
        for (std::int64_t l = 0; l < d.k; ++l)
          sum += a[batch * d.stride_a + (p.at ? l * d.lda + i : i * d.lda + l)] *
                 b[batch * d.stride_b + (p.bt ? j * d.ldb + l : l * d.ldb + j)];
        c[batch * d.stride_c + i * d.ldc + j] = C(scale * sum);
      }
}

using Multiply = void(float*, const float*, const float*, int, int, int, int, int, int, int);
using Multiplying = Choice<ProductProblem, Multiply>;

/// A process on a GPU whose memory is the host's, with cuBLASLt and an own way to multiply.
struct Multiplier : Process {
  explicit Multiplier(const fs::path& directory) : Process(directory) {
    device->info().target = {Target::Kind::cuda, "sm_90a"};
    void* const opened = dlopen(FAKE_CUBLASLT, RTLD_NOW);
    REQUIRE(opened);
    fake = reinterpret_cast<FakeCublasltScript>(dlsym(opened, "kiln_fake_cublaslt"))();
    *fake = {};
    fake->algorithms = {{20, 0}, {15, 4096}};
    fake->on_matmul = [this](std::uint32_t tile) {
      ++matmuls;
      device->pass(seconds[tile]);
    };
    seconds = {{20, 1e-3}, {15, 1e-3}};
  }
  ~Multiplier() { fake->on_matmul = {}; }

  Multiplying choice() {
    Multiplying made{
        .name = "multiply",
        .problem = [](float*, const float*, const float*, int m, int n, int k, int at, int bt,
                      int gap, int batch) { return ProductProblem{m, n, k, at, bt, gap, batch}; }};
    made.alternatives.push_back(
        {.name = "cublaslt", .cublaslt = CublasltGemm{.product = [](auto p) {
                               return product_of(from_values<ProductProblem>(p));
                             }}});
    made.alternatives.push_back(
        {.name = "mine",
         .call = [this](const AlternativeCall<ProductProblem>& how, Stream, float* c,
                        const float* a, const float* b, int, int, int, int, int, int, int) {
           multiply(how.problem, c, a, b);
           device->pass(own_seconds);
         }});
    made.workload = [](const ProductProblem& p, Workload& w) {
      const MatrixProduct d = product_of(p);
      const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
      w.output<float>(Rows{size(d.batch * d.m), size(d.n), size(d.ldc)});
      w.input<float>(size(d.batch * d.stride_a)).input<float>(size(d.batch * d.stride_b));
      w.scalar(p.m).scalar(p.n).scalar(p.k).scalar(p.at).scalar(p.bt).scalar(p.gap).scalar(p.batch);
    };
    made.reference = [](float* c, const float* a, const float* b, int m, int n, int k, int at,
                        int bt, int gap,
                        int batch) { multiply({m, n, k, at, bt, gap, batch}, c, a, b); };
    return made;
  }

  const EnvironmentVariable library{"KILN_CUBLASLT", FAKE_CUBLASLT};
  FakeCublaslt* fake;
  std::map<std::uint32_t, double> seconds;  ///< by tile
  double own_seconds = 2e-3;
  int matmuls = 0;
};

inline constexpr ProductProblem kSmall{5, 6, 7, 0, 1, 0, 1};

struct Matrices {
  alignas(16) std::array<float, 512> c{}, a{}, b{};
  void launch(const TunedChoice<ProductProblem, Multiply>& f, const ProductProblem& p,
              Stream s = {}, int skip = 0) {
    f(s, c.data(), a.data() + skip, b.data(), p.m, p.n, p.k, p.at, p.bt, p.gap, p.batch);
  }
};

}  // namespace kiln::test
