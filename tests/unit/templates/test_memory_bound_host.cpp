// vector_add, residual_add, gated_activation and rmsnorm on the host target.
#include <algorithm>
#include <cmath>
#include <limits>

#include "row_test.hpp"

using namespace kiln::templates;
using template_test::Array;
using template_test::HostInstance;

namespace {

template <class T>
void check_add(const VectorAdd& config) {
  const HostInstance<VectorAddKernel<T>> add(vector_add_kernel<T>(), config);
  const HostInstance<ResidualAddKernel<T>> add_rows(residual_add_kernel<T>(), config);
  const int tile = config.tile();
  for (int n : {1, tile - 1, tile, tile + 1, 3 * tile + 5})
    for (std::size_t offset : {0, 1, 3}) {
      if (n < 1) continue;
      INFO("n=" << n << " offset=" << offset);
      Array<T> out(n, offset), a(n, offset), b(n, offset);
      a.reals(1);
      b.reals(2);
      const T* x = a.data();
      const T* y = b.data();
      auto wrong = [&](float scale) {
        int count = out.margins_intact() ? 0 : n + 1;
        for (int i = 0; i < n; ++i) {
          const float first =
              scale == 1.0f
                  ? static_cast<float>(a[i])
                  : static_cast<float>(T(static_cast<float>(a[i]) + static_cast<float>(b[i])));
          if (static_cast<float>(out[i]) != static_cast<float>(T(first + static_cast<float>(b[i]))))
            ++count;
        }
        return count;
      };
      add({n}, out.data(), x, y, n);
      CHECK(wrong(1.0f) == 0);
      add_rows({n, 1}, out.data(), static_cast<const T*>(out.data()), y, n, 1);  // in place
      CHECK(wrong(2.0f) == 0);
    }
}

template <class T>
void check_rmsnorm(const RowConfig& config) {
  const auto kernel = rmsnorm_kernel<T>();
  const HostInstance<RmsNormKernel<T>> norm(kernel, config);
  for (const RmsNormProblem& p :
       std::vector<RmsNormProblem>{{1, 1}, {3, 512}, {5, 4096}, {7, 37}, {9, 1000}, {2, 9999}})
    for (std::size_t offset : {0, 3}) {
      INFO("rows=" << p.rows << " hidden=" << p.hidden << " offset=" << offset << " "
                   << template_test::describe(config));
      const auto hidden = static_cast<std::size_t>(p.hidden), n = p.rows * hidden;
      Array<T> y(n, offset), x(n, offset), w(hidden, offset);
      x.reals(3);
      w.reals(4);
      norm(p, y.data(), static_cast<const T*>(x.data()), static_cast<const T*>(w.data()), p.rows,
           p.hidden, 1e-5f);
      std::size_t wrong = y.margins_intact() ? 0 : n + 1;
      for (std::size_t r = 0; r < static_cast<std::size_t>(p.rows); ++r) {
        double sum = 0;
        for (std::size_t h = 0; h < hidden; ++h) {
          const double value = static_cast<float>(x[r * hidden + h]);
          sum += value * value;
        }
        for (std::size_t h = 0; h < hidden; ++h) {
          const double want = static_cast<double>(static_cast<float>(x[r * hidden + h])) *
                              static_cast<double>(static_cast<float>(w[h])) /
                              std::sqrt(sum / p.hidden + 1e-5);
          const double got = static_cast<float>(y[r * hidden + h]);
          if (!(std::abs(got - want) <=
                kernel.tolerance.absolute + kernel.tolerance.relative * std::abs(want)))
            ++wrong;
        }
      }
      CHECK(wrong == 0);
    }
}

/// Against the equation in double, and with NaNs and infinities among gate and up.
template <class T, class Activation>
void check_gated(const GatedActivation& config, double (*activation)(double)) {
  const auto kernel = gated_activation_kernel<T, Activation>();
  const HostInstance<GatedActivationKernel<T>> activate(kernel, config);
  for (const Activations& p :
       std::vector<Activations>{{1, 1}, {3, 512}, {5, config.tile() + 1}, {7, 37}, {2, 999}})
    for (std::size_t offset : {0, 3}) {
      INFO("rows=" << p.rows << " hidden=" << p.hidden << " offset=" << offset);
      const auto hidden = static_cast<std::size_t>(p.hidden);
      const auto n = static_cast<std::size_t>(p.elements());
      Array<T> out(n, offset), x(2 * n, offset);
      x.reals(5);
      x[0] = T(std::numeric_limits<float>::quiet_NaN());
      x[2 * n - 1] = T(std::numeric_limits<float>::infinity());
      activate(p, out.data(), static_cast<const T*>(x.data()), p.rows, p.hidden);
      std::size_t wrong = out.margins_intact() ? 0 : n + 1;
      for (std::size_t i = 0; i < n; ++i) {
        const T* const gate = x.data() + i / hidden * 2 * hidden + i % hidden;
        const double want = activation(static_cast<float>(gate[0])) *
                            static_cast<double>(static_cast<float>(gate[hidden]));
        const double got = static_cast<float>(out[i]);
        const double bound = kernel.tolerance.absolute + kernel.tolerance.relative * std::abs(want);
        const bool right = std::isfinite(want) ? std::abs(got - want) <= bound
                           : std::isnan(want)  ? std::isnan(got)
                                               : got == want;
        wrong += !right;
      }
      CHECK(wrong == 0);
    }
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu(double x) { return x / 2 * (1 + std::erf(x / std::sqrt(2.0))); }
double gelu_tanh(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}
double relu(double x) { return std::isnan(x) ? x : std::max(x, 0.0); }

}  // namespace

TEMPLATE_TEST_CASE("gated activations: all rows, widths, alignments and special values",
                   "[templates][host]", float, kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  check_gated<TestType, kiln::epilogue::Silu>({256, 8}, silu);
  check_gated<TestType, kiln::epilogue::Gelu>({64, 1}, gelu);
  check_gated<TestType, kiln::epilogue::GeluTanh>({128, 32}, gelu_tanh);
  check_gated<TestType, kiln::epilogue::Relu>({64, 2}, relu);
}

TEMPLATE_TEST_CASE("vector_add and residual_add: exact, ragged, unaligned, in place",
                   "[templates][host]", float, kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  check_add<TestType>({256, 8});
  check_add<TestType>({32, 3});
  check_add<TestType>({1, 1});
}

TEMPLATE_TEST_CASE("rmsnorm: all rows, widths and alignments", "[templates][host]", float,
                   kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (const RowConfig& config : template_test::row_configs<TestType>(rmsnorm_kernel<TestType>()))
    check_rmsnorm<TestType>(config);
}
