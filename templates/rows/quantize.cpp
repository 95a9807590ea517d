// Host half of quantize.hpp.
#include <cmath>
#include <string>
#include <vector>

#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

namespace {

/// quantize_blocks and quantize_tensor: `kept` accesses per thread, and nothing behind them.
template <int bytes>
constexpr auto tile_space() {
  constexpr int kWidest = 16 / bytes;
  return Space<RowConfig, HiddenRows>{{.block = 256,
                                       .rows_per_block = 1,
                                       .vector = kWidest,
                                       .kept = 4,
                                       .online = false,
                                       .persistent = false}}
      .values(&RowConfig::block, {32, 64, 128, 256, 512, 1024})
      .values(&RowConfig::kept, {1, 2, 4, 8})
      .where("a block's threads fit the device",
             [](const RowConfig& c, const HiddenRows&, const DeviceLimits& d) {
               return c.threads() <= d.max_threads_per_block;
             })
      .where("what a thread keeps fits its registers",
             [](const RowConfig& c, const HiddenRows&, const DeviceLimits&) {
               return c.block < 1024 || c.kept <= 2;
             })
      .checked();
}

template <class T>
RowValues rows_of(const T* x, int hidden) {
  return [=](std::ptrdiff_t r) { return std::vector<float>(x + r * hidden, x + (r + 1) * hidden); };
}

template <class T>
void quantize_rows_reference(float8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
  quantize_by_rows(q, scales, rows, hidden, rows_of(x, hidden));
}
template <class T>
void quantize_blocks_reference(float8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
  quantize_by_blocks(q, scales, rows, hidden, rows_of(x, hidden));
}
template <class T>
void quantize_tensor_reference(float8_e4m3* q, const T* x, const float* scale, int rows,
                               int hidden) {
  quantize_by_scale(q, *scale, rows, hidden, rows_of(x, hidden));
}

constexpr Tolerance kSameBits{.relative = 0, .absolute = 0};

template <class T>
double quantized_bytes(const HiddenRows& p, double scales) {
  return 1.0 * p.rows * p.hidden * (sizeof(T) + 1) + scales * sizeof(float);
}

/// A largest magnitude does not depend on the order.
std::string no_sums(const RowConfig&, const HiddenRows&) { return "no sums"; }

constexpr RowWork kOfQuantizing{.element = 3, .passes = 2, .reductions = 1};

/// On the host: nanoseconds of one core; threads take turns at the shuffles of quantize_blocks.
double tile_cost(const RowConfig& c, const HiddenRows& p, double per_thread,
                 const DeviceLimits& d) {
  if (!d.on_host()) return std::numeric_limits<double>::quiet_NaN();
  const double elements = 1.0 * p.rows * p.hidden, accesses = elements / c.vector;
  return elements * (3 + 2.0 / c.vector) + accesses * (per_thread + 2.0 / c.kept) +
         accesses / (c.block * c.kept) * 40;
}

/// But for workload, reference and bytes.
template <class T>
RowKernel<HiddenRows> tile_kernel(const char* name, double flops, double per_thread) {
  auto kernel = row_kernel<T>(name, "quantize.cuh", tile_space<sizeof(T)>(), 3);
  kernel.launch = row_tiles_launch;
  kernel.tolerance = kSameBits;
  kernel.flops = row_flops<HiddenRows>(flops);
  kernel.cost = [per_thread](const RowConfig& c, const HiddenRows& p, const DeviceLimits& d) {
    return tile_cost(c, p, per_thread, d);
  };
  kernel.numerics = no_sums;
  return kernel;
}

}  // namespace

template <class T>
RowKernel<HiddenRows> quantize_rows_base() {
  auto kernel =
      row_kernel<T>("quantize_rows", "quantize.cuh",
                    staged<sizeof(T)>(row_space<sizeof(T), HiddenRows, RowUse{}>()).checked(), 3);
  kernel.workload = rows_workload<T, 1>;
  kernel.computed_by(quantize_rows_reference<T>);
  kernel.tolerance = kSameBits;
  kernel.flops = row_flops<HiddenRows>(3);
  kernel.bytes = [](const HiddenRows& p) { return quantized_bytes<T>(p, p.rows); };
  kernel.cost = row_costs<HiddenRows>(kOfQuantizing, sizeof(T));
  kernel.default_for = row_default<sizeof(T), HiddenRows, RowUse{}>;
  kernel.numerics = no_sums;
  return kernel;
}

template <class T>
RowKernel<HiddenRows> quantize_blocks_base() {
  auto kernel = tile_kernel<T>("quantize_blocks", 3, 5);
  kernel.workload = blocks_workload<T, 1>;
  kernel.computed_by(quantize_blocks_reference<T>);
  kernel.bytes = [](const HiddenRows& p) {
    return quantized_bytes<T>(p, p.rows * std::ceil(1.0 * p.hidden / kScaleBlock));
  };
  return kernel;
}

template <class T>
RowKernel<HiddenRows> quantize_tensor_base() {
  auto kernel = tile_kernel<T>("quantize_tensor", 2, 0);
  kernel.launch = [](const RowConfig& c, const HiddenRows& p) {
    return tile_launch(c, std::ceil(1.0 * p.rows * p.hidden / c.step() / c.kept));
  };
  kernel.workload = tensor_workload<T, 1>;
  kernel.computed_by(quantize_tensor_reference<T>);
  kernel.bytes = [](const HiddenRows& p) { return quantized_bytes<T>(p, 1); };
  return kernel;
}

#define KILN_QUANTIZE(T)                                    \
  template RowKernel<HiddenRows> quantize_rows_base<T>();   \
  template RowKernel<HiddenRows> quantize_blocks_base<T>(); \
  template RowKernel<HiddenRows> quantize_tensor_base<T>();
KILN_QUANTIZE(float)
KILN_QUANTIZE(float16)
KILN_QUANTIZE(bfloat16)
#undef KILN_QUANTIZE

}  // namespace kiln::templates
