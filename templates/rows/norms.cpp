// Host halves of layernorm.hpp, rmsnorm.hpp, rmsnorm_residual.hpp and rmsnorm_fp8.hpp.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kiln/detail/format.hpp"
#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

namespace {

double value_of(float x) { return x; }

/// 1 / sqrt(a mean of squares + eps), as norm_scale of device/elements.cuh has it.
double norm_scale(double square, float eps) {
  constexpr double kLeast = std::numeric_limits<float>::min();
  return 1 / std::sqrt(std::max(square + value_of(eps), kLeast));
}

/// Squares whose sum is beyond the largest float have an infinite one.
double scale_of_squares(double sum, int hidden, float eps) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return sum > kMost ? 0 : norm_scale(sum / hidden, eps);
}

template <class T>
double rms_scale(const T* x, int hidden, float eps) {
  double sum = 0;
  for (int h = 0; h < hidden; ++h) sum += value_of(x[h]) * value_of(x[h]);
  return scale_of_squares(sum, hidden, eps);
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
    const double scale = scale_of_squares(variance, hidden, eps);
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

/// A row's norm, not rounded.
template <class T>
RowValues normed_rows_of(const T* x, const T* w, int hidden, float eps) {
  return [=](std::ptrdiff_t r) {
    const T* from = x + r * hidden;
    const double norm = rms_scale(from, hidden, eps);
    std::vector<float> values(static_cast<std::size_t>(hidden));
    for (std::size_t h = 0; h < values.size(); ++h)
      values[h] = static_cast<float>(value_of(from[h]) * norm * value_of(w[h]));
    return values;
  };
}

template <class T>
void add_rows(T* residual, const T* x, int rows, int hidden) {
  for_each_row(rows, [=](std::ptrdiff_t r) {
    for (std::ptrdiff_t i = r * hidden; i < (r + 1) * hidden; ++i)
      residual[i] = T(static_cast<float>(residual[i]) + static_cast<float>(x[i]));
  });
}

template <class T>
void rmsnorm_residual_reference(T* y, T* residual, const T* x, const T* w, int rows, int hidden,
                                float eps) {
  add_rows(residual, x, rows, hidden);
  rmsnorm_reference<T>(y, residual, w, rows, hidden, eps);
}

void by_rows(float8_e4m3* q, float* scales, int rows, int hidden, const RowValues& row) {
  quantize_by_rows(q, scales, rows, hidden, row);
}
void by_blocks(float8_e4m3* q, float* scales, int rows, int hidden, const RowValues& row) {
  quantize_by_blocks(q, scales, rows, hidden, row);
}

template <class T, auto quantize_rows>
void rmsnorm_fp8_reference(float8_e4m3* q, float* scales, const T* x, const T* w, int rows,
                           int hidden, float eps) {
  quantize_rows(q, scales, rows, hidden, normed_rows_of(x, w, hidden, eps));
}
template <class T, auto quantize_rows>
void rmsnorm_residual_fp8_reference(float8_e4m3* q, float* scales, T* residual, const T* x,
                                    const T* w, int rows, int hidden, float eps) {
  add_rows(residual, x, rows, hidden);
  quantize_rows(q, scales, rows, hidden, normed_rows_of<T>(residual, w, hidden, eps));
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
constexpr RowWork kOfResidualFp8{.element = 4.25, .passes = 4, .reductions = 2};

/// Where the largest element of a scale has few digits and weights are equal, 1 % of bf16 elements
/// lie at a midpoint.
constexpr NeighboursAllowed kNormNeighbours{.part = 0.02, .of_each_row = true};

constexpr RowUse kRmsUse{.beside = 1};
template <int bytes>
constexpr Space<RowConfig, HiddenRows> rms_space() {
  return staged<bytes>(row_space<bytes, HiddenRows, kRmsUse>()).checked();
}

/// What follows q and its scales.
template <class T>
void add_normed_rows(const HiddenRows& p, Workload& w) {
  const auto hidden = static_cast<std::size_t>(p.hidden);
  w.input<T>(static_cast<std::size_t>(p.rows) * hidden).template input<T>(hidden);
  w.scalar(p.rows).scalar(p.hidden).scalar(1e-5f);
}

/// `arrays` of all rows are read or written beside q.
template <class T>
double normed_bytes(const HiddenRows& p, double arrays, double scales) {
  return (arrays * p.rows + 1) * p.hidden * sizeof(T) + 1.0 * p.rows * p.hidden +
         scales * sizeof(float);
}

/// Why sums are not the right ones, bit by bit but for NaNs; empty: they are.
template <class T>
std::string wrong_sums(const HiddenRows& p, const T* got, const T* right) {
  for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{p.rows} * p.hidden; ++i) {
    const float a = static_cast<float>(got[i]), b = static_cast<float>(right[i]);
    if (!(a == b || (std::isnan(a) && std::isnan(b))))
      return kiln::detail::format("residual[{}][{}] is {}, not {}", i / p.hidden, i % p.hidden, a,
                                  b);
  }
  return "";
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
  kernel.default_for = row_default<sizeof(T), HiddenRows, kUse>;
  return kernel;
}

template <class T>
RowKernel<HiddenRows> rmsnorm_fp8_base() {
  auto kernel = row_kernel<T>("rmsnorm_fp8", "rmsnorm_fp8.cuh", rms_space<sizeof(T)>(), 4);
  kernel.workload = [](const HiddenRows& p, Workload& w) {
    add_scaled_by_rows(p, w);
    add_normed_rows<T>(p, w);
  };
  kernel.computed_by(rmsnorm_fp8_reference<T, by_rows>);
  kernel.tolerance = kNormNeighbours.tolerance();
  kernel.check = [](const HiddenRows& p, const auto& got, const auto& expected) {
    return wrong_fp8(p, {Fp8Scales::Of::rows, 1}, kNormNeighbours, std::get<0>(got),
                     std::get<0>(expected));
  };
  kernel.flops = row_flops<HiddenRows>(7);
  kernel.bytes = [](const HiddenRows& p) { return normed_bytes<T>(p, 1, p.rows); };
  kernel.cost = row_costs<HiddenRows>(kOfFp8, sizeof(T));
  kernel.default_for = row_default<sizeof(T), HiddenRows, kRmsUse>;
  return kernel;
}

template <class T>
RowKernel<HiddenRows> rmsnorm_fp8_blocks_base() {
  constexpr RowUse kUse{.beside = 1, .ahead = false, .function = 8};
  auto kernel =
      row_kernel<T>("rmsnorm_fp8_blocks", "rmsnorm_fp8.cuh", standing<sizeof(T), kUse>(), 4);
  kernel.workload = [](const HiddenRows& p, Workload& w) {
    add_scaled_by_blocks(p, w);
    add_normed_rows<T>(p, w);
  };
  kernel.computed_by(rmsnorm_fp8_reference<T, by_blocks>);
  kernel.tolerance = kNormNeighbours.tolerance();
  kernel.check = [](const HiddenRows& p, const auto& got, const auto& expected) {
    return wrong_fp8(p, {Fp8Scales::Of::blocks, 1}, kNormNeighbours, std::get<0>(got),
                     std::get<0>(expected));
  };
  kernel.flops = row_flops<HiddenRows>(7);
  kernel.bytes = [](const HiddenRows& p) {
    return normed_bytes<T>(p, 1, 1.0 * p.rows * scale_blocks(p.hidden));
  };
  kernel.cost = row_costs<HiddenRows>(kOfFp8, sizeof(T));
  kernel.default_for = row_default<sizeof(T), HiddenRows, kUse>;
  return kernel;
}

namespace {

/// But for what depends on the scales.
template <class T>
RowKernel<HiddenRows> residual_fp8(const char* name, Fp8Scales::Of scales) {
  constexpr RowUse kUse{.rows = 2, .ahead = false, .function = 8};
  auto kernel = row_kernel<T>(name, "rmsnorm_fp8.cuh", standing<sizeof(T), kUse>(), 5);
  kernel.tolerance = kNormNeighbours.tolerance();
  kernel.check = [scales](const HiddenRows& p, const auto& got, const auto& expected) {
    const kiln::detail::HostArguments &its = std::get<0>(got), &right = std::get<0>(expected);
    const std::string wrong =
        wrong_sums<T>(p, its.template get<const T*>(2), right.template get<const T*>(2));
    return wrong.empty() ? wrong_fp8(p, {scales, 1}, kNormNeighbours, its, right) : wrong;
  };
  kernel.flops = row_flops<HiddenRows>(8);
  kernel.cost = row_costs<HiddenRows>(kOfResidualFp8, sizeof(T));
  kernel.default_for = row_default<sizeof(T), HiddenRows, kUse>;
  return kernel;
}

}  // namespace

template <class T>
RowKernel<HiddenRows> rmsnorm_residual_fp8_base() {
  auto kernel = residual_fp8<T>("rmsnorm_residual_fp8", Fp8Scales::Of::rows);
  kernel.workload = [](const HiddenRows& p, Workload& w) {
    add_scaled_by_rows(p, w);
    w.in_out<T>(static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.hidden));
    add_normed_rows<T>(p, w);
  };
  kernel.computed_by(rmsnorm_residual_fp8_reference<T, by_rows>);
  kernel.bytes = [](const HiddenRows& p) { return normed_bytes<T>(p, 3, p.rows); };
  return kernel;
}

template <class T>
RowKernel<HiddenRows> rmsnorm_residual_fp8_blocks_base() {
  auto kernel = residual_fp8<T>("rmsnorm_residual_fp8_blocks", Fp8Scales::Of::blocks);
  kernel.workload = [](const HiddenRows& p, Workload& w) {
    add_scaled_by_blocks(p, w);
    w.in_out<T>(static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.hidden));
    add_normed_rows<T>(p, w);
  };
  kernel.computed_by(rmsnorm_residual_fp8_reference<T, by_blocks>);
  kernel.bytes = [](const HiddenRows& p) {
    return normed_bytes<T>(p, 3, 1.0 * p.rows * scale_blocks(p.hidden));
  };
  return kernel;
}

#define KILN_NORMS(T)                                            \
  template RowKernel<HiddenRows> layernorm_base<T>();            \
  template RowKernel<HiddenRows> rmsnorm_base<T>();              \
  template RowKernel<HiddenRows> rmsnorm_residual_base<T>();     \
  template RowKernel<HiddenRows> rmsnorm_fp8_base<T>();          \
  template RowKernel<HiddenRows> rmsnorm_fp8_blocks_base<T>();   \
  template RowKernel<HiddenRows> rmsnorm_residual_fp8_base<T>(); \
  template RowKernel<HiddenRows> rmsnorm_residual_fp8_blocks_base<T>();
KILN_NORMS(float)
KILN_NORMS(float16)
KILN_NORMS(bfloat16)
#undef KILN_NORMS

}  // namespace kiln::templates
