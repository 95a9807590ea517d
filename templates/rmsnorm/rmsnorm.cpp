// Host half of rmsnorm.hpp.
#include <cmath>
#include <limits>

#include <tbb/parallel_for.h>

#include "kiln/paths.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

namespace {

/// kept * vector elements of x per thread, at most this many, are registers and not spills.
constexpr int kMostKept = 128;

template <class T>
constexpr Space<RmsNorm, RmsNormProblem> rmsnorm_space() {
  constexpr int kWidest = 16 / sizeof(T);
  return Space<RmsNorm, RmsNormProblem>{
      {.block = 512, .rows_per_block = 1, .vector = kWidest, .kept = 1}}
      .values(&RmsNorm::block, {64, 128, 256, 512, 1024})
      .values(&RmsNorm::rows_per_block, {1, 2, 4, 8})
      .values(&RmsNorm::vector, {kWidest / 2, kWidest})
      .values(&RmsNorm::kept, {0, 1, 2, 4, 8, 16})
      .where("a block's threads fit the device",
             [](const RmsNorm& c, const RmsNormProblem&, const DeviceLimits& d) {
               return c.threads() <= d.max_threads_per_block;
             })
      .where("each row has one warp if a block has several rows",
             [](const RmsNorm& c, const RmsNormProblem&, const DeviceLimits&) {
               return c.rows_per_block == 1 || c.rows_per_block * 32 == c.block;
             })
      .where("the elements that a thread keeps fit its registers",
             [](const RmsNorm& c, const RmsNormProblem&, const DeviceLimits&) {
               return c.kept * c.vector <= kMostKept;
             })
      .where("every access that is kept lies at least partly in the row",
             [](const RmsNorm& c, const RmsNormProblem& p, const DeviceLimits&) {
               return c.kept <= 1 || (c.kept - 1) * c.step() < p.hidden;
             })
      .checked();
}

/// On the host: nanoseconds of one core. Threads take turns between barriers and shuffles, so a
/// thread costs more than the elements that it saves another, and what it keeps across them is
/// stored and loaded. A GPU is left to the general model.
double cost(const RmsNorm& c, const RmsNormProblem& p, std::size_t element_bytes,
            const DeviceLimits& d) {
  if (!d.on_host()) return std::numeric_limits<double>::quiet_NaN();
  const double conversion = element_bytes == 2 ? 2 : 1;
  const double elements = p.hidden * (0.25 + 2.2 * conversion / c.vector);
  const double turns = c.warps_per_row() > 1 ? 8 + 0.5 * c.warps_per_row() : 5;
  const double kept = 0.4 * c.kept * c.vector;
  return p.rows * (elements + c.threads_per_row() * (turns + kept));
}

template <class T>
void reference(T* y, const T* x, const T* w, int rows, int hidden, float eps) {
  tbb::parallel_for(0, rows, [=](int r) {
    const T* from = x + static_cast<std::ptrdiff_t>(r) * hidden;
    T* to = y + static_cast<std::ptrdiff_t>(r) * hidden;
    double sum = 0;
    for (int h = 0; h < hidden; ++h) {
      const double value = static_cast<float>(from[h]);
      sum += value * value;
    }
    const double scale = 1 / std::sqrt(sum / hidden + static_cast<double>(eps));
    for (int h = 0; h < hidden; ++h) {
      const double value = static_cast<float>(from[h]), weight = static_cast<float>(w[h]);
      to[h] = T(static_cast<float>(value * scale * weight));
    }
  });
}

/// A unit in the last place either way, and the order in which squares are added.
template <class T>
constexpr Tolerance kRmsNormTolerance{.relative = 1e-5, .absolute = 1e-6};
template <>
constexpr Tolerance kRmsNormTolerance<float16>{.relative = 2e-3, .absolute = 1e-6};
template <>
constexpr Tolerance kRmsNormTolerance<bfloat16>{.relative = 1.6e-2, .absolute = 1e-6};

}  // namespace

template <class T>
RmsNormKernel<T> rmsnorm_kernel() {
  return {
      .name = "rmsnorm",
      .source = {.file = templates_dir() / "rmsnorm/rmsnorm.cuh"},
      .entry = "kiln::templates::rmsnorm",
      .config_type = "kiln::templates::RmsNorm",
      .types = {device_name<T>()},
      .space = rmsnorm_space<T>(),
      .launch =
          [](const RmsNorm& c, const RmsNormProblem& p) {
            return Launch{{p.hidden > 0 ? c.grid(p.rows) : 0},
                          {static_cast<unsigned>(c.threads())},
                          c.shared_bytes()};
          },
      .problem = [](T*, const T*, const T*, int rows, int hidden,
                    float) { return RmsNormProblem{rows, hidden}; },
      .relations = {{3, "rows"}, {4, "hidden"}},
      .bucket =
          [](const RmsNormProblem& p) { return RmsNormProblem{count_bucket(p.rows), p.hidden}; },
      .workload =
          [](const RmsNormProblem& p, Workload& w) {
            const auto hidden = static_cast<std::size_t>(p.hidden);
            const auto elements = static_cast<std::size_t>(p.rows) * hidden;
            w.output<T>(elements).template input<T>(elements).template input<T>(hidden);
            w.scalar(p.rows).scalar(p.hidden).scalar(1e-5f);
          },
      .reference = reference<T>,
      .tolerance = kRmsNormTolerance<T>,
      .flops = [](const RmsNormProblem& p) { return 4.0 * p.rows * p.hidden; },
      .bytes =
          [](const RmsNormProblem& p) {
            return (2.0 * p.rows + 1) * p.hidden * static_cast<double>(sizeof(T));
          },
      .cost = [](const RmsNorm& c, const RmsNormProblem& p,
                 const DeviceLimits& d) { return cost(c, p, sizeof(T), d); },
      .numerics =
          [](const RmsNorm& c, const RmsNormProblem&) {
            return std::to_string(c.threads_per_row()) + " sums, " + std::to_string(c.vector) +
                   " elements at a time";
          }};
}

template RmsNormKernel<float> rmsnorm_kernel();
template RmsNormKernel<float16> rmsnorm_kernel();
template RmsNormKernel<bfloat16> rmsnorm_kernel();

}  // namespace kiln::templates
