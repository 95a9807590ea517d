// Host halves of layernorm.hpp, rmsnorm.hpp, rmsnorm_residual.hpp and rmsnorm_fp8.hpp.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kiln/paths.hpp"
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
    scales[r] = quantize(q + r * hidden, std::span<const float>(values));
  });
}

/// Differences between large numbers lose digits before they are rounded.
template <class T>
constexpr Tolerance kLayerNormTolerance{.relative = kRounding<T>, .absolute = 1e-5};
template <class T>
constexpr Tolerance kRmsTolerance{.relative = kRounding<T>, .absolute = 1e-6};

constexpr RowWork kOfLayerNorm{.element = 0.5, .passes = 3, .reductions = 2};
constexpr RowWork kOfRmsNorm{.element = 0.25, .passes = 2, .reductions = 1};
constexpr RowWork kOfResidual{.element = 0.5, .passes = 3, .reductions = 1};
constexpr RowWork kOfFp8{.element = 4, .passes = 3, .reductions = 2};

}  // namespace

template <class T>
LayerNormKernel<T> layernorm_kernel() {
  return {.name = "layernorm",
          .source = {.file = templates_dir() / "rows/layernorm.cuh"},
          .entry = "kiln::templates::layernorm",
          .config_type = "kiln::templates::RowConfig",
          .types = {device_name<T>()},
          .space = staged<T>(row_space<T, HiddenRows, RowUse{.beside = 2}>().values(
                                 &RowConfig::online, {false, true}))
                       .checked(),
          .launch = row_launch<T, HiddenRows>,
          .problem = [](T*, const T*, const T*, const T*, int rows, int hidden,
                        float) { return HiddenRows{rows, hidden}; },
          .relations = {{4, "rows"}, {5, "hidden"}},
          .bucket = token_bucket<HiddenRows>,
          .workload =
              [](const HiddenRows& p, Workload& w) {
                const auto hidden = static_cast<std::size_t>(p.hidden);
                const auto elements = static_cast<std::size_t>(p.rows) * hidden;
                w.output<T>(elements).template input<T>(elements, {-1, 3});
                w.input<T>(hidden).template input<T>(hidden);
                w.scalar(p.rows).scalar(p.hidden).scalar(1e-5f);
              },
          .reference = layernorm_reference<T>,
          .tolerance = kLayerNormTolerance<T>,
          .flops = [](const HiddenRows& p) { return 7.0 * p.rows * p.hidden; },
          .bytes = [](const HiddenRows& p) { return (2.0 * p.rows + 2) * p.hidden * sizeof(T); },
          .cost = [](const RowConfig& c, const HiddenRows& p,
                     const DeviceLimits& d) { return row_cost<T>(c, p, kOfLayerNorm, d); },
          .default_for = row_default<T, HiddenRows, RowUse{.beside = 2}>,
          .numerics = row_sums<HiddenRows>};
}

template <class T>
RmsNormKernel<T> rmsnorm_kernel() {
  return {.name = "rmsnorm",
          .source = {.file = templates_dir() / "rows/rmsnorm.cuh"},
          .entry = "kiln::templates::rmsnorm",
          .config_type = "kiln::templates::RowConfig",
          .types = {device_name<T>()},
          .space = staged<T>(row_space<T, HiddenRows, RowUse{.beside = 1}>()).checked(),
          .launch = row_launch<T, HiddenRows>,
          .problem = [](T*, const T*, const T*, int rows, int hidden,
                        float) { return HiddenRows{rows, hidden}; },
          .relations = {{3, "rows"}, {4, "hidden"}},
          .bucket = token_bucket<HiddenRows>,
          .workload =
              [](const HiddenRows& p, Workload& w) {
                const auto hidden = static_cast<std::size_t>(p.hidden);
                const auto elements = static_cast<std::size_t>(p.rows) * hidden;
                w.output<T>(elements).template input<T>(elements).template input<T>(hidden);
                w.scalar(p.rows).scalar(p.hidden).scalar(1e-5f);
              },
          .reference = rmsnorm_reference<T>,
          .tolerance = kRmsTolerance<T>,
          .flops = [](const HiddenRows& p) { return 4.0 * p.rows * p.hidden; },
          .bytes = [](const HiddenRows& p) { return (2.0 * p.rows + 1) * p.hidden * sizeof(T); },
          .cost = [](const RowConfig& c, const HiddenRows& p,
                     const DeviceLimits& d) { return row_cost<T>(c, p, kOfRmsNorm, d); },
          .default_for = row_default<T, HiddenRows, RowUse{.beside = 1}>,
          .numerics = row_sums<HiddenRows>};
}

template <class T>
RmsNormResidualKernel<T> rmsnorm_residual_kernel() {
  return {.name = "rmsnorm_residual",
          .source = {.file = templates_dir() / "rows/rmsnorm_residual.cuh"},
          .entry = "kiln::templates::rmsnorm_residual",
          .config_type = "kiln::templates::RowConfig",
          .types = {device_name<T>()},
          .space = row_space<T, HiddenRows, RowUse{.rows = 2, .ahead = false}>().checked(),
          .launch = row_launch<T, HiddenRows>,
          .problem = [](T*, T*, const T*, const T*, int rows, int hidden,
                        float) { return HiddenRows{rows, hidden}; },
          .relations = {{4, "rows"}, {5, "hidden"}},
          .bucket = token_bucket<HiddenRows>,
          .workload =
              [](const HiddenRows& p, Workload& w) {
                const auto hidden = static_cast<std::size_t>(p.hidden);
                const auto elements = static_cast<std::size_t>(p.rows) * hidden;
                w.output<T>(elements).template in_out<T>(elements);
                w.input<T>(elements).template input<T>(hidden);
                w.scalar(p.rows).scalar(p.hidden).scalar(1e-5f);
              },
          .reference = rmsnorm_residual_reference<T>,
          .tolerance = kRmsTolerance<T>,
          .flops = [](const HiddenRows& p) { return 5.0 * p.rows * p.hidden; },
          .bytes = [](const HiddenRows& p) { return (4.0 * p.rows + 1) * p.hidden * sizeof(T); },
          .cost = [](const RowConfig& c, const HiddenRows& p,
                     const DeviceLimits& d) { return row_cost<T>(c, p, kOfResidual, d); },
          .numerics = row_sums<HiddenRows>};
}

template <class T>
RmsNormFp8Kernel<T> rmsnorm_fp8_kernel() {
  return {.name = "rmsnorm_fp8",
          .source = {.file = templates_dir() / "rows/rmsnorm_fp8.cuh"},
          .entry = "kiln::templates::rmsnorm_fp8",
          .config_type = "kiln::templates::RowConfig",
          .types = {device_name<T>()},
          .space = staged<T>(row_space<T, HiddenRows, RowUse{.beside = 1}>()).checked(),
          .launch = row_launch<T, HiddenRows>,
          .problem = [](float8_e4m3*, float*, const T*, const T*, int rows, int hidden,
                        float) { return HiddenRows{rows, hidden}; },
          .relations = {{4, "rows"}, {5, "hidden"}},
          .bucket = token_bucket<HiddenRows>,
          .workload =
              [](const HiddenRows& p, Workload& w) {
                const auto rows = static_cast<std::size_t>(p.rows),
                           hidden = static_cast<std::size_t>(p.hidden);
                w.output<float8_e4m3>(rows * hidden).template output<float>(rows);
                w.input<T>(rows * hidden).template input<T>(hidden);
                w.scalar(p.rows).scalar(p.hidden).scalar(1e-5f);
              },
          .reference = rmsnorm_fp8_reference<T>,
          .check =
              [](const HiddenRows& p, const auto& got, const auto& expected) {
                // Where the row's largest element has few digits and weights are equal, 1 % of
                // bf16 elements lie at a midpoint.
                return wrong_fp8(p, std::get<0>(got), std::get<1>(got), std::get<0>(expected),
                                 std::get<1>(expected), {.part = 0.02, .of_each_row = true},
                                 [](std::ptrdiff_t r, int) { return r; });
              },
          .flops = [](const HiddenRows& p) { return 7.0 * p.rows * p.hidden; },
          .bytes =
              [](const HiddenRows& p) {
                const double read = (1.0 * p.rows + 1) * p.hidden * sizeof(T);
                return read + p.rows * (1.0 * p.hidden + sizeof(float));
              },
          .cost = [](const RowConfig& c, const HiddenRows& p,
                     const DeviceLimits& d) { return row_cost<T>(c, p, kOfFp8, d); },
          .default_for = row_default<T, HiddenRows, RowUse{.beside = 1}>,
          .numerics = row_sums<HiddenRows>};
}

template LayerNormKernel<float> layernorm_kernel();
template LayerNormKernel<float16> layernorm_kernel();
template LayerNormKernel<bfloat16> layernorm_kernel();
template RmsNormKernel<float> rmsnorm_kernel();
template RmsNormKernel<float16> rmsnorm_kernel();
template RmsNormKernel<bfloat16> rmsnorm_kernel();
template RmsNormResidualKernel<float> rmsnorm_residual_kernel();
template RmsNormResidualKernel<float16> rmsnorm_residual_kernel();
template RmsNormResidualKernel<bfloat16> rmsnorm_residual_kernel();
template RmsNormFp8Kernel<float> rmsnorm_fp8_kernel();
template RmsNormFp8Kernel<float16> rmsnorm_fp8_kernel();
template RmsNormFp8Kernel<bfloat16> rmsnorm_fp8_kernel();

}  // namespace kiln::templates
