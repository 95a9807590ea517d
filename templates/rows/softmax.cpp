// Host halves of softmax.hpp and cross_entropy.hpp.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kiln/paths.hpp"
#include "templates/rows/row_space.hpp"

namespace kiln::templates {

namespace {

template <class T, bool ahead>
constexpr auto logit_space() {
  return clustered<T>(row_space<T, LogitRows, RowUse{.ahead = ahead, .online = true}>().values(
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
constexpr Tolerance kSoftmaxTolerance{.relative = kRounding<T>, .absolute = 1.2e-38};
template <>
constexpr Tolerance kSoftmaxTolerance<float16>{.relative = kRounding<float16>, .absolute = 6e-8};

constexpr RowWork kOfSoftmax{.element = 3, .passes = 3, .reductions = 2};
constexpr RowWork kOfCrossEntropy{.element = 1.5, .passes = 2, .reductions = 2};

}  // namespace

template <class T>
SoftmaxKernel<T> softmax_kernel() {
  return {.name = "softmax",
          .source = {.file = templates_dir() / "rows/softmax.cuh"},
          .entry = "kiln::templates::softmax",
          .config_type = "kiln::templates::RowConfig",
          .types = {device_name<T>()},
          .space = staged<T>(logit_space<T, true>()).checked(),
          .launch = row_launch<T, LogitRows>,
          .problem = [](T*, const T*, int rows, int columns) { return LogitRows{rows, columns}; },
          .relations = {{2, "rows"}, {3, "columns"}},
          .bucket = token_bucket<LogitRows>,
          .workload =
              [](const LogitRows& p, Workload& w) {
                const auto elements =
                    static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.columns);
                w.output<T>(elements).template input<T>(elements, {-8, 8});
                w.scalar(p.rows).scalar(p.columns);
              },
          .reference = softmax_reference<T>,
          .tolerance = kSoftmaxTolerance<T>,
          .flops = [](const LogitRows& p) { return 5.0 * p.rows * p.columns; },
          .bytes = [](const LogitRows& p) { return 2.0 * p.rows * p.columns * sizeof(T); },
          .cost = [](const RowConfig& c, const LogitRows& p,
                     const DeviceLimits& d) { return row_cost<T>(c, p, kOfSoftmax, d); },
          .default_for = row_default<T, LogitRows, RowUse{.online = true}, true>,
          .numerics = row_sums<LogitRows>};
}

template <class T>
CrossEntropyKernel<T> cross_entropy_kernel() {
  return {.name = "cross_entropy",
          .source = {.file = templates_dir() / "rows/cross_entropy.cuh"},
          .entry = "kiln::templates::cross_entropy",
          .config_type = "kiln::templates::RowConfig",
          .types = {device_name<T>()},
          .space = logit_space<T, false>().checked(),
          .launch = row_launch<T, LogitRows>,
          .problem = [](float*, const T*, const int*, int rows, int columns,
                        int) { return LogitRows{rows, columns}; },
          .relations = {{3, "rows"}, {4, "columns"}},
          .bucket = token_bucket<LogitRows>,
          .workload =
              [](const LogitRows& p, Workload& w) {
                const auto rows = static_cast<std::size_t>(p.rows);
                w.output<float>(rows).template input<T>(rows * static_cast<std::size_t>(p.columns),
                                                        {-8, 8});
                w.input<int>(std::span<const int>(labels(p)));
                w.scalar(p.rows).scalar(p.columns).scalar(kIgnored);
              },
          .reference = cross_entropy_reference<T>,
          .tolerance = {.relative = 2e-5, .absolute = 2e-5},
          .flops = [](const LogitRows& p) { return 4.0 * p.rows * p.columns; },
          // Of ignored rows there are few.
          .bytes = [](const LogitRows& p) { return (1.0 * p.columns * sizeof(T) + 8) * p.rows; },
          .cost = [](const RowConfig& c, const LogitRows& p,
                     const DeviceLimits& d) { return row_cost<T>(c, p, kOfCrossEntropy, d); },
          .numerics = row_sums<LogitRows>};
}

template SoftmaxKernel<float> softmax_kernel();
template SoftmaxKernel<float16> softmax_kernel();
template SoftmaxKernel<bfloat16> softmax_kernel();
template CrossEntropyKernel<float> cross_entropy_kernel();
template CrossEntropyKernel<float16> cross_entropy_kernel();
template CrossEntropyKernel<bfloat16> cross_entropy_kernel();

}  // namespace kiln::templates
