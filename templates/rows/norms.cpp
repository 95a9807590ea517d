// Host halves of layernorm.hpp, rmsnorm.hpp, rmsnorm_residual.hpp and rmsnorm_fp8.hpp.
#include <algorithm>
#include <cmath>
#include <vector>

#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

namespace {

double value_of(float x) { return x; }

/// 1 / sqrt(mean of squares + eps)
template <class T>
double rms_scale(const T* x, int hidden, float eps) {
  double sum = 0;
  for (int h = 0; h < hidden; ++h) sum += value_of(x[h]) * value_of(x[h]);
  return 1 / std::sqrt(sum / hidden + value_of(eps));
}

template <class T>
void layernorm_reference(T* y, const T* x, const T* w, const T* b, int rows, int hidden,
                         float eps) {
  for_each_row(rows, [=](std::ptrdiff_t r) {
    const T* from = x + r * hidden;
    double mean = 0, variance = 0;
    for (int h = 0; h < hidden; ++h) mean += value_of(from[h]);
    mean /= hidden;
    for (int h = 0; h < hidden; ++h) variance += std::pow(value_of(from[h]) - mean, 2);
    const double scale = 1 / std::sqrt(variance / hidden + value_of(eps));
    for (int h = 0; h < hidden; ++h)
      y[r * hidden + h] = T(
          static_cast<float>((value_of(from[h]) - mean) * scale * value_of(w[h]) + value_of(b[h])));
  });
}

template <class T>
void rmsnorm_reference(T* y, const T* x, const T* w, int rows, int hidden, float eps) {
  for_each_row(rows, [=](std::ptrdiff_t r) {
    const T* from = x + r * hidden;
    const double scale = rms_scale(from, hidden, eps);
    for (int h = 0; h < hidden; ++h)
      y[r * hidden + h] = T(static_cast<float>(value_of(from[h]) * scale * value_of(w[h])));
  });
}

template <class T>
void rmsnorm_residual_reference(T* y, T* residual, const T* x, const T* w, int rows, int hidden,
                                float eps) {
  for_each_row(rows, [=](std::ptrdiff_t r) {
    T* sum = residual + r * hidden;
    for (int h = 0; h < hidden; ++h)
      sum[h] = T(static_cast<float>(sum[h]) + static_cast<float>(x[r * hidden + h]));
    const double scale = rms_scale(sum, hidden, eps);
    for (int h = 0; h < hidden; ++h)
      y[r * hidden + h] = T(static_cast<float>(value_of(sum[h]) * scale * value_of(w[h])));
  });
}

template <class T>
void rmsnorm_fp8_reference(float8_e4m3* q, float* scales, const T* x, const T* w, int rows,
                           int hidden, float eps) {
  for_each_row(rows, [=](std::ptrdiff_t r) {
    const T* from = x + r * hidden;
    const double norm = rms_scale(from, hidden, eps);
    std::vector<float> values(static_cast<std::size_t>(hidden));
    for (std::size_t h = 0; h < values.size(); ++h)
      values[h] = static_cast<float>(value_of(from[h]) * norm * value_of(w[h]));
    scales[r] = quantize(q + r * hidden, values);
  });
}

/// Differences between large numbers lose digits before they are rounded.
template <class T>
constexpr Tolerance kLayerNormTolerance{
    .relative = kRounding<T>, .absolute = 1e-5, .norm = kRounding<T> / 2};
template <class T>
constexpr Tolerance kRmsTolerance{
    .relative = kRounding<T>, .absolute = 1e-6, .norm = kRounding<T> / 2};

constexpr RowWork kOfLayerNorm{.element = 0.5, .passes = 3, .reductions = 2};
constexpr RowWork kOfRmsNorm{.element = 0.25, .passes = 2, .reductions = 1};
constexpr RowWork kOfResidual{.element = 0.5, .passes = 3, .reductions = 1};
constexpr RowWork kOfFp8{.element = 4, .passes = 3, .reductions = 2};

constexpr RowUse kRmsUse{.beside = 1};
template <int bytes>
constexpr Space<RowConfig, HiddenRows> rms_space() {
  return staged<bytes>(row_space<bytes, HiddenRows, kRmsUse>()).checked();
}

}  // namespace

template <class T>
RowKernel<HiddenRows> layernorm_base() {
  constexpr RowUse kUse{.beside = 2};
  auto kernel = row_kernel<T>("layernorm", "layernorm.cuh",
                              staged<sizeof(T)>(row_space<sizeof(T), HiddenRows, kUse>().values(
                                                    &RowConfig::online, {false, true}))
                                  .checked(),
                              4);
  kernel.workload = [](const HiddenRows& p, Workload& w) {
    const auto hidden = static_cast<std::size_t>(p.hidden);
    const auto elements = static_cast<std::size_t>(p.rows) * hidden;
    w.output<T>(elements).template input<T>(elements, {-1, 3});
    w.input<T>(hidden).template input<T>(hidden);
    w.scalar(p.rows).scalar(p.hidden).scalar(1e-5f);
  };
  kernel.computed_by(layernorm_reference<T>);
  kernel.tolerance = kLayerNormTolerance<T>;
  kernel.flops = row_flops<HiddenRows>(7);
  kernel.bytes = row_bytes<HiddenRows>(2, 2, sizeof(T));
  kernel.cost = row_costs<HiddenRows>(kOfLayerNorm, sizeof(T));
  kernel.default_for = row_default<sizeof(T), HiddenRows, kUse>;
  return kernel;
}

template <class T>
RowKernel<HiddenRows> rmsnorm_base() {
  auto kernel = row_kernel<T>("rmsnorm", "rmsnorm.cuh", rms_space<sizeof(T)>(), 3);
  kernel.workload = [](const HiddenRows& p, Workload& w) {
    const auto hidden = static_cast<std::size_t>(p.hidden);
    const auto elements = static_cast<std::size_t>(p.rows) * hidden;
    w.output<T>(elements).template input<T>(elements).template input<T>(hidden);
    w.scalar(p.rows).scalar(p.hidden).scalar(1e-5f);
  };
  kernel.computed_by(rmsnorm_reference<T>);
  kernel.tolerance = kRmsTolerance<T>;
  kernel.flops = row_flops<HiddenRows>(4);
  kernel.bytes = row_bytes<HiddenRows>(2, 1, sizeof(T));
  kernel.cost = row_costs<HiddenRows>(kOfRmsNorm, sizeof(T));
  kernel.default_for = row_default<sizeof(T), HiddenRows, kRmsUse>;
  return kernel;
}

template <class T>
RowKernel<HiddenRows> rmsnorm_residual_base() {
  constexpr RowUse kUse{.rows = 2, .ahead = false};
  auto kernel = row_kernel<T>("rmsnorm_residual", "rmsnorm_residual.cuh",
                              row_space<sizeof(T), HiddenRows, kUse>().checked(), 4);
  kernel.workload = [](const HiddenRows& p, Workload& w) {
    const auto hidden = static_cast<std::size_t>(p.hidden);
    const auto elements = static_cast<std::size_t>(p.rows) * hidden;
    w.output<T>(elements).template in_out<T>(elements);
    w.input<T>(elements).template input<T>(hidden);
    w.scalar(p.rows).scalar(p.hidden).scalar(1e-5f);
  };
  kernel.computed_by(rmsnorm_residual_reference<T>);
  kernel.tolerance = kRmsTolerance<T>;
  kernel.flops = row_flops<HiddenRows>(5);
  kernel.bytes = row_bytes<HiddenRows>(4, 1, sizeof(T));
  kernel.cost = row_costs<HiddenRows>(kOfResidual, sizeof(T));
  return kernel;
}

template <class T>
RowKernel<HiddenRows> rmsnorm_fp8_base() {
  auto kernel = row_kernel<T>("rmsnorm_fp8", "rmsnorm_fp8.cuh", rms_space<sizeof(T)>(), 4);
  kernel.workload = [](const HiddenRows& p, Workload& w) {
    const auto rows = static_cast<std::size_t>(p.rows), hidden = static_cast<std::size_t>(p.hidden);
    w.output<float8_e4m3>(rows * hidden).template output<float>(rows);
    w.input<T>(rows * hidden).template input<T>(hidden);
    w.scalar(p.rows).scalar(p.hidden).scalar(1e-5f);
  };
  kernel.computed_by(rmsnorm_fp8_reference<T>);
  // Where the row's largest element has few digits and weights are equal, 1 % of bf16 elements lie
  // at a midpoint.
  kernel.check = [](const HiddenRows& p, const auto& got, const auto& expected) {
    return wrong_fp8(p, {Fp8Scales::Of::rows, 1}, {.part = 0.02, .of_each_row = true},
                     std::get<0>(got), std::get<0>(expected));
  };
  kernel.flops = row_flops<HiddenRows>(7);
  kernel.bytes = [](const HiddenRows& p) {
    const double read = (1.0 * p.rows + 1) * p.hidden * sizeof(T);
    return read + p.rows * (1.0 * p.hidden + sizeof(float));
  };
  kernel.cost = row_costs<HiddenRows>(kOfFp8, sizeof(T));
  kernel.default_for = row_default<sizeof(T), HiddenRows, kRmsUse>;
  return kernel;
}

#define KILN_NORMS(T)                                        \
  template RowKernel<HiddenRows> layernorm_base<T>();        \
  template RowKernel<HiddenRows> rmsnorm_base<T>();          \
  template RowKernel<HiddenRows> rmsnorm_residual_base<T>(); \
  template RowKernel<HiddenRows> rmsnorm_fp8_base<T>();
KILN_NORMS(float)
KILN_NORMS(float16)
KILN_NORMS(bfloat16)
#undef KILN_NORMS

}  // namespace kiln::templates
