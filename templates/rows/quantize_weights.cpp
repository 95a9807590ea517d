// Host half of quantize_weights.hpp.
#include "templates/rows/quantize_weights.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <tbb/parallel_for.h>

#include "kiln/error.hpp"
#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

namespace {

/// Thread blocks, and scales.
double weight_blocks(const WeightGroups& p) {
  return 1.0 * p.groups * scale_blocks(p.n) * scale_blocks(p.k);
}

template <int bytes>
Space<RowConfig, WeightGroups> weight_space() {
  constexpr int kOfBlock = kScaleBlock * kScaleBlock, kWidest = 16 / bytes;
  return Space<RowConfig, WeightGroups>{{.block = 512,
                                         .rows_per_block = 1,
                                         .vector = kWidest,
                                         .kept = kOfBlock / 512 / kWidest,
                                         .online = false,
                                         .persistent = false,
                                         .resident = bytes == 4 ? 512 : 1024}}
      .values(&RowConfig::block, {128, 256, 512, 1024})
      .values(&RowConfig::vector, {4, 8})
      .values(&RowConfig::kept, {2, 4, 8, 16, 32})
      .values(&RowConfig::resident, {256, 512, 1024, 2048})
      .values_on(Target::Kind::host, &RowConfig::resident, {bytes == 4 ? 512 : 1024})
      .where("a thread block keeps a block of 128 x 128",
             [](const RowConfig& c, const WeightGroups&, const DeviceLimits&) {
               return c.block * c.vector * c.kept == kOfBlock;
             })
      .where("an access has at most 16 bytes",
             [](const RowConfig& c, const WeightGroups&, const DeviceLimits&) {
               return c.vector <= kWidest;
             })
      .where("a block's threads fit the device",
             [](const RowConfig& c, const WeightGroups&, const DeviceLimits& d) {
               return c.threads() <= d.max_threads_per_block;
             })
      .where_on(Target::Kind::cuda, "whole blocks are resident, and what their threads keep",
                [](const RowConfig& c, const WeightGroups&, const DeviceLimits& d) {
                  const int registers =
                      32 + (bytes == 2 ? 3 : 2) * c.kept + c.kept * c.vector * bytes / 4;
                  return c.resident >= c.block && c.resident <= d.max_threads_per_multiprocessor &&
                         registers <= 65536 / c.resident / 8 * 8;
                })
      .checked();
}

void check(const WeightGroups& p) {
  if (p.n < 0 || p.k < 0 || p.groups < 0)
    throw UserError("quantize_weights: n, k or the number of groups is negative");
}

template <class T>
void weights_reference(float8_e4m3* q, float* scales, const T* w, int n, int k, int groups) {
  const int down = scale_blocks(n), across = scale_blocks(k);
  tbb::parallel_for(std::ptrdiff_t{0}, std::ptrdiff_t{groups} * down, [=](std::ptrdiff_t row) {
    const int j = static_cast<int>(row % down) * kScaleBlock, rows = std::min(kScaleBlock, n - j);
    const std::ptrdiff_t first = (row / down * n + j) * k;
    for (int block = 0; block < across; ++block) {
      const int l = block * kScaleBlock, columns = std::min(kScaleBlock, k - l);
      std::vector<float> values;
      for (int r = 0; r < rows; ++r)
        for (int i = 0; i < columns; ++i)
          values.push_back(static_cast<float>(w[first + std::ptrdiff_t{r} * k + l + i]));
      std::vector<float8_e4m3> of_block(values.size());
      scales[row * across + block] = quantize(of_block.data(), values);
      for (int r = 0; r < rows; ++r)
        std::copy_n(of_block.data() + std::ptrdiff_t{r} * columns, columns,
                    q + first + std::ptrdiff_t{r} * k + l);
    }
  });
}

}  // namespace

template <class T>
RowKernel<WeightGroups> quantize_weights_base() {
  RowKernel<WeightGroups> kernel{{.name = "quantize_weights",
                                  .source = {.file = templates_dir() / "rows/quantize_weights.cuh"},
                                  .entry = "kiln::templates::quantize_weights",
                                  .config_type = "kiln::templates::RowConfig",
                                  .types = {device_name<T>()},
                                  .space = weight_space<sizeof(T)>()}};
  kernel.launch = [](const RowConfig& c, const WeightGroups& p) {
    return tile_launch(c, weight_blocks(p));
  };
  kernel.relations = {{3, "n"}, {4, "k"}, {5, "groups"}};
  kernel.bucket = [](const WeightGroups& p) {
    check(p);
    return p;
  };
  kernel.workload = [](const WeightGroups& p, Workload& w) {
    const auto elements = static_cast<std::size_t>(p.groups) * static_cast<std::size_t>(p.n) *
                          static_cast<std::size_t>(p.k);
    w.output<float8_e4m3>(elements).template output<float>(
        static_cast<std::size_t>(weight_blocks(p)));
    w.input<T>(elements).scalar(p.n).scalar(p.k).scalar(p.groups);
  };
  kernel.computed_by(weights_reference<T>);
  kernel.tolerance = {.relative = 0, .absolute = 0};
  kernel.flops = [](const WeightGroups& p) { return 3.0 * p.groups * p.n * p.k; };
  kernel.bytes = [](const WeightGroups& p) {
    return 1.0 * p.groups * p.n * p.k * (sizeof(T) + 1) + weight_blocks(p) * sizeof(float);
  };
  // On the host: nanoseconds of one core, whose threads take turns at two shuffles and a barrier.
  kernel.cost = [](const RowConfig& c, const WeightGroups& p, const DeviceLimits& d) {
    if (!d.on_host()) return std::numeric_limits<double>::quiet_NaN();
    return 1.0 * p.groups * p.n * p.k * (3 + 2.0 / c.vector) + weight_blocks(p) * c.block * 40;
  };
  kernel.numerics = [](const RowConfig&, const WeightGroups&) { return std::string("no sums"); };
  return kernel;
}

template RowKernel<WeightGroups> quantize_weights_base<float>();
template RowKernel<WeightGroups> quantize_weights_base<float16>();
template RowKernel<WeightGroups> quantize_weights_base<bfloat16>();

}  // namespace kiln::templates
