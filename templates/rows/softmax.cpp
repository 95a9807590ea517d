// Host halves of softmax.hpp and cross_entropy.hpp.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "templates/rows/row_host.hpp"

namespace kiln::templates {

namespace {

template <int bytes, bool ahead>
constexpr auto logit_space() {
  return clustered<bytes>(
      row_space<bytes, LogitRows, RowUse{.ahead = ahead, .online = true}>().values(
          &RowConfig::online, {false, true}));
}

struct LogitSum {
  double max, sum;  // of exp(x - max)
};

template <class T>
LogitSum logit_sum(const T* x, int columns) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int c = 0; c < columns; ++c) max = std::max(max, double{static_cast<float>(x[c])});
  for (int c = 0; c < columns; ++c) sum += std::exp(double{static_cast<float>(x[c])} - max);
  return {max, sum};
}

template <class T>
void softmax_reference(T* y, const T* x, int rows, int columns) {
  for_each_row(rows, [=](std::ptrdiff_t r) {
    const T* from = x + r * columns;
    const LogitSum s = logit_sum(from, columns);
    for (int c = 0; c < columns; ++c)
      y[r * columns + c] =
          T(static_cast<float>(std::exp(double{static_cast<float>(from[c])} - s.max) / s.sum));
  });
}

template <class T>
void cross_entropy_reference(float* loss, const T* x, const int* label, int rows, int columns,
                             int ignored) {
  for_each_row(rows, [=](std::ptrdiff_t r) {
    const int wanted = label[r];
    if (wanted == ignored) {
      loss[r] = 0;
      return;
    }
    const T* from = x + r * columns;
    const LogitSum s = logit_sum(from, columns);
    const double logit =
        wanted >= 0 && wanted < columns ? double{static_cast<float>(from[wanted])} : std::nan("");
    loss[r] = static_cast<float>(s.max - logit + std::log(s.sum));
  });
}

/// Labels all over the vocabulary; one of eight is ignored.
constexpr int kIgnored = -100;
std::vector<int> labels(const LogitRows& p) {
  std::vector<int> drawn(static_cast<std::size_t>(p.rows));
  std::uint32_t state = 12345;
  for (std::size_t r = 0; r < drawn.size(); ++r) {
    state = state * 1664525u + 1013904223u;
    const auto place = static_cast<std::uint64_t>(state) * static_cast<std::uint32_t>(p.columns);
    drawn[r] = r % 8 == 5 ? kIgnored : static_cast<int>(place >> 32);
  }
  return drawn;
}

/// Small weights are right to as many digits as large ones; what float, or half, has no normal
/// number for is not.
template <class T>
constexpr Tolerance kSoftmaxTolerance{
    .relative = kRounding<T>, .absolute = 1.2e-38, .norm = kRounding<T> / 2};
template <>
constexpr Tolerance kSoftmaxTolerance<float16>{
    .relative = kRounding<float16>, .absolute = 6e-8, .norm = kRounding<float16> / 2};

constexpr RowWork kOfSoftmax{.element = 3, .passes = 3, .reductions = 2};
constexpr RowWork kOfCrossEntropy{.element = 1.5, .passes = 2, .reductions = 2};

}  // namespace

template <class T>
RowKernel<LogitRows> softmax_base() {
  auto kernel = row_kernel<T>("softmax", "softmax.cuh",
                              staged<sizeof(T)>(logit_space<sizeof(T), true>()).checked(), 2);
  kernel.workload = [](const LogitRows& p, Workload& w) {
    const auto elements = static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.columns);
    w.output<T>(elements).template input<T>(elements, {-8, 8});
    w.scalar(p.rows).scalar(p.columns);
  };
  kernel.computed_by(softmax_reference<T>);
  kernel.tolerance = kSoftmaxTolerance<T>;
  kernel.flops = row_flops<LogitRows>(5);
  kernel.bytes = row_bytes<LogitRows>(2, 0, sizeof(T));
  kernel.cost = row_costs<LogitRows>(kOfSoftmax, sizeof(T));
  kernel.default_for = row_default<sizeof(T), LogitRows, RowUse{.online = true}, true>;
  return kernel;
}

template <class T>
RowKernel<LogitRows> cross_entropy_base() {
  auto kernel = row_kernel<T>("cross_entropy", "cross_entropy.cuh",
                              logit_space<sizeof(T), false>().checked(), 3);
  kernel.workload = [](const LogitRows& p, Workload& w) {
    const auto rows = static_cast<std::size_t>(p.rows);
    w.output<float>(rows).template input<T>(rows * static_cast<std::size_t>(p.columns), {-8, 8});
    w.input<int>(std::span<const int>(labels(p)));
    w.scalar(p.rows).scalar(p.columns).scalar(kIgnored);
  };
  kernel.computed_by(cross_entropy_reference<T>);
  kernel.tolerance = {.relative = 2e-5, .absolute = 2e-5, .norm = 1e-5};
  kernel.flops = row_flops<LogitRows>(4);
  // Of ignored rows there are few.
  kernel.bytes = [](const LogitRows& p) { return (1.0 * p.columns * sizeof(T) + 8) * p.rows; };
  kernel.cost = row_costs<LogitRows>(kOfCrossEntropy, sizeof(T));
  kernel.default_for =
      row_default<sizeof(T), LogitRows, RowUse{.ahead = false, .online = true, .once = true}, true>;
  return kernel;
}

#define KILN_LOGITS(T)                             \
  template RowKernel<LogitRows> softmax_base<T>(); \
  template RowKernel<LogitRows> cross_entropy_base<T>();
KILN_LOGITS(float)
KILN_LOGITS(float16)
KILN_LOGITS(bfloat16)
#undef KILN_LOGITS

}  // namespace kiln::templates
