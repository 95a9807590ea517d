// Host half of quantize.hpp.
#include <cmath>

#include "kiln/paths.hpp"
#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

namespace {

/// quantize_blocks and quantize_tensor: `kept` accesses per thread, and nothing behind them.
template <class T>
constexpr auto tile_space() {
  constexpr int kWidest = 16 / sizeof(T);
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
auto rows_of(const T* x, int hidden) {
  return
      [=](std::ptrdiff_t r) { return std::span(x + r * hidden, static_cast<std::size_t>(hidden)); };
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
template <class T>
double tile_cost(const RowConfig& c, const HiddenRows& p, double per_thread,
                 const DeviceLimits& d) {
  if (!d.on_host()) return std::numeric_limits<double>::quiet_NaN();
  const double elements = 1.0 * p.rows * p.hidden, accesses = elements / c.vector;
  return elements * (3 + 2.0 / c.vector) + accesses * (per_thread + 2.0 / c.kept) +
         accesses / (c.block * c.kept) * 40;
}

/// What quantize_rows and quantize_blocks share.
template <class T>
QuantizeRowsKernel<T> scaling_kernel() {
  return {.source = {.file = templates_dir() / "rows/quantize.cuh"},
          .config_type = "kiln::templates::RowConfig",
          .types = {device_name<T>()},
          .space = staged<T>(row_space<T, HiddenRows, RowUse{}>()).checked(),
          .problem = [](float8_e4m3*, float*, const T*, int rows,
                        int hidden) { return HiddenRows{rows, hidden}; },
          .relations = {{3, "rows"}, {4, "hidden"}},
          .bucket = token_bucket<HiddenRows>,
          .tolerance = kSameBits,
          .flops = [](const HiddenRows& p) { return 3.0 * p.rows * p.hidden; },
          .numerics = no_sums};
}

}  // namespace

template <class T>
QuantizeRowsKernel<T> quantize_rows_kernel() {
  QuantizeRowsKernel<T> kernel = scaling_kernel<T>();
  kernel.name = "quantize_rows";
  kernel.default_for = row_default<T, HiddenRows, RowUse{}>;
  kernel.entry = "kiln::templates::quantize_rows";
  kernel.launch = row_launch<T, HiddenRows>;
  kernel.workload = rows_workload<T, 1>;
  kernel.reference = quantize_rows_reference<T>;
  kernel.bytes = [](const HiddenRows& p) { return quantized_bytes<T>(p, p.rows); };
  kernel.cost = [](const RowConfig& c, const HiddenRows& p, const DeviceLimits& d) {
    return row_cost<T>(c, p, kOfQuantizing, d);
  };
  return kernel;
}

template <class T>
QuantizeBlocksKernel<T> quantize_blocks_kernel() {
  QuantizeBlocksKernel<T> kernel = scaling_kernel<T>();
  kernel.name = "quantize_blocks";
  kernel.entry = "kiln::templates::quantize_blocks";
  kernel.space = tile_space<T>();
  kernel.launch = row_tiles_launch;
  kernel.workload = blocks_workload<T, 1>;
  kernel.reference = quantize_blocks_reference<T>;
  kernel.bytes = [](const HiddenRows& p) {
    return quantized_bytes<T>(p, p.rows * std::ceil(1.0 * p.hidden / kScaleBlock));
  };
  kernel.cost = [](const RowConfig& c, const HiddenRows& p, const DeviceLimits& d) {
    return tile_cost<T>(c, p, 5, d);
  };
  return kernel;
}

template <class T>
QuantizeTensorKernel<T> quantize_tensor_kernel() {
  return {.name = "quantize_tensor",
          .source = {.file = templates_dir() / "rows/quantize.cuh"},
          .entry = "kiln::templates::quantize_tensor",
          .config_type = "kiln::templates::RowConfig",
          .types = {device_name<T>()},
          .space = tile_space<T>(),
          .launch =
              [](const RowConfig& c, const HiddenRows& p) {
                return tile_launch(c, std::ceil(1.0 * p.rows * p.hidden / c.step() / c.kept));
              },
          .problem = [](float8_e4m3*, const T*, const float*, int rows,
                        int hidden) { return HiddenRows{rows, hidden}; },
          .relations = {{3, "rows"}, {4, "hidden"}},
          .bucket = token_bucket<HiddenRows>,
          .workload = tensor_workload<T, 1>,
          .reference = quantize_tensor_reference<T>,
          .tolerance = kSameBits,
          .flops = [](const HiddenRows& p) { return 2.0 * p.rows * p.hidden; },
          .bytes = [](const HiddenRows& p) { return quantized_bytes<T>(p, 1); },
          .cost = [](const RowConfig& c, const HiddenRows& p,
                     const DeviceLimits& d) { return tile_cost<T>(c, p, 0, d); },
          .numerics = no_sums};
}

template QuantizeRowsKernel<float> quantize_rows_kernel();
template QuantizeRowsKernel<float16> quantize_rows_kernel();
template QuantizeRowsKernel<bfloat16> quantize_rows_kernel();
template QuantizeBlocksKernel<float> quantize_blocks_kernel();
template QuantizeBlocksKernel<float16> quantize_blocks_kernel();
template QuantizeBlocksKernel<bfloat16> quantize_blocks_kernel();
template QuantizeTensorKernel<float> quantize_tensor_kernel();
template QuantizeTensorKernel<float16> quantize_tensor_kernel();
template QuantizeTensorKernel<bfloat16> quantize_tensor_kernel();

}  // namespace kiln::templates
