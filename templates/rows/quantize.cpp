// Host half of quantize.hpp, quantize_blocks_masked.hpp and quantize_tensor_dynamic.hpp.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "templates/gemm/grouped/gemm_grouped_host.hpp"
#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

/// As grouped GEMMs draw them; `expectation` finds it by its argument.
static std::vector<int> drawn_rows(const MaskedRows& p, std::size_t draw) {
  return drawn_rows(p.groups, std::round(0.5 * p.m * p.groups), p.m, draw);
}

namespace {

/// Kernels whose thread blocks take tiles: `kept` accesses per thread, and nothing behind them.
template <int bytes, class Problem = HiddenRows>
constexpr auto tile_space() {
  constexpr int kWidest = 16 / bytes;
  return Space<RowConfig, Problem>{{.block = 256,
                                    .rows_per_block = 1,
                                    .vector = kWidest,
                                    .kept = 4,
                                    .online = false,
                                    .persistent = false}}
      .values(&RowConfig::block, {32, 64, 128, 256, 512, 1024})
      .values(&RowConfig::kept, {1, 2, 4, 8})
      .where("a block's threads fit the device",
             [](const RowConfig& c, const Problem&, const DeviceLimits& d) {
               return c.threads() <= d.max_threads_per_block;
             })
      .where("what a thread keeps fits its registers",
             [](const RowConfig& c, const Problem&, const DeviceLimits&) {
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

template <class T>
void quantize_tensor_dynamic_reference(float8_e4m3* q, float* scale, const T* x, int rows,
                                       int hidden) {
  const std::ptrdiff_t elements = std::ptrdiff_t{rows} * hidden;
  float most = 0;
  for (std::ptrdiff_t i = 0; i < elements; ++i)
    most = std::fmax(most, std::fabs(static_cast<float>(x[i])));
  if (elements == 0) return;
  *scale = fp8_scale(most);
  quantize_by_scale(q, *scale, rows, hidden, rows_of(x, hidden));
}
template <class T>
void quantize_blocks_masked_reference(float8_e4m3* q, float* scales, const T* x, const int* counts,
                                      int m, int hidden, int groups) {
  for (std::ptrdiff_t g = 0; g < groups; ++g) {
    const std::ptrdiff_t elements = g * m * hidden;
    quantize_by_blocks(q + elements, scales + g * scale_blocks(hidden) * scale_leading(m),
                       std::clamp(counts[g], 0, m), hidden, rows_of(x + elements, hidden),
                       scale_leading(m));
  }
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
double tile_cost(const RowConfig& c, double elements, double per_thread, const DeviceLimits& d) {
  if (!d.on_host()) return std::numeric_limits<double>::quiet_NaN();
  const double accesses = elements / c.vector;
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
    return tile_cost(c, 1.0 * p.rows * p.hidden, per_thread, d);
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

namespace {

double pieces(const RowConfig& c, const HiddenRows& p) {
  return std::ceil(1.0 * p.rows * p.hidden / c.step() / c.kept);
}
/// Those that look for the largest magnitude: no more than are resident at once.
Launch search_launch(const RowConfig& c, const HiddenRows& p, const DeviceLimits& d) {
  return tile_launch(
      c, std::min<double>(pieces(c, p), d.usable_multiprocessors() * c.resident_blocks()));
}

/// What `kept` accesses take leaves registers for as many threads as are to be resident.
template <int bytes>
Space<RowConfig, HiddenRows> dynamic_space() {
  return tile_space<bytes>()
      .values(&RowConfig::resident, {512, 1024, 2048})
      .values_on(Target::Kind::host, &RowConfig::resident, {1024})
      .where_on(Target::Kind::cuda, "whole blocks are resident, and what their threads keep",
                [](const RowConfig& c, const HiddenRows&, const DeviceLimits& d) {
                  const int registers = 28 + c.kept * c.vector * bytes / 4;
                  return c.resident >= c.block && c.resident <= d.max_threads_per_multiprocessor &&
                         c.resident_blocks() <= d.max_blocks_per_multiprocessor &&
                         registers <= 65536 / c.resident;
                })
      .checked();
}

}  // namespace

template <class T>
RowKernel<HiddenRows> quantize_tensor_dynamic_base() {
  auto kernel = tile_kernel<T>("quantize_tensor_dynamic", 3, 0);
  kernel.source.file = templates_dir() / "rows/quantize_tensor_dynamic.cuh";
  kernel.space = dynamic_space<sizeof(T)>();
  kernel.launch = search_launch;
  kernel.workspace = {.size = [](const RowConfig& c, const HiddenRows& p, const DeviceLimits& d) {
    const auto blocks = std::size_t{search_launch(c, p, d).grid.x};
    return WorkspaceSize{.bytes = sizeof(unsigned) + blocks * sizeof(float)};
  }};
  kernel.steps = {{.entry = "kiln::templates::quantize_tensor_dynamic_store",
                   .launch = [](const RowConfig& c, const HiddenRows& p) {
                     return tile_launch(c, pieces(c, p));
                   }}};
  kernel.workload = [](const HiddenRows& p, Workload& w) {
    const auto elements = static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.hidden);
    w.output<float8_e4m3>(elements);
    if (elements > 0)
      w.template output<float>(1);
    else
      w.template in_out<float>(1);
    w.input<T>(elements).scalar(p.rows).scalar(p.hidden);
  };
  kernel.computed_by(quantize_tensor_dynamic_reference<T>);
  kernel.bytes = [](const HiddenRows& p) {
    return quantized_bytes<T>(p, 1) + 1.0 * p.rows * p.hidden * sizeof(T);
  };
  kernel.cost = [](const RowConfig& c, const HiddenRows& p, const DeviceLimits& d) {
    const double blocks = search_launch(c, p, d).grid.x, turns = 2 * pieces(c, p) * c.block * 20;
    return tile_cost(c, 1.5 * p.rows * p.hidden, 0, d) + blocks * c.block * 20 + turns;
  };
  return kernel;
}

template <class T>
RowKernel<MaskedRows> quantize_blocks_masked_base() {
  using P = const MaskedRows&;
  RowKernel<MaskedRows> kernel{
      {.name = "quantize_blocks_masked",
       .source = {.file = templates_dir() / "rows/quantize_blocks_masked.cuh"},
       .entry = "kiln::templates::quantize_blocks_masked",
       .config_type = "kiln::templates::RowConfig",
       .types = {device_name<T>()},
       .space = tile_space<sizeof(T), MaskedRows>()}};
  kernel.launch = [](const RowConfig& c, P p) {
    return tile_launch(c, std::ceil(1.0 * p.m / c.kept) * p.groups *
                              static_cast<double>(column_tiles(c, p.hidden)));
  };
  kernel.relations = {{4, "m"}, {5, "hidden"}, {6, "groups"}};
  kernel.bucket = [](P p) {
    if (p.m < 0 || p.hidden < 0 || p.groups < 0)
      throw UserError("quantize_blocks_masked: m, hidden or the number of groups is negative");
    return p;
  };
  kernel.workload = [](P p, Workload& w) {
    const auto rows = static_cast<std::size_t>(p.groups) * static_cast<std::size_t>(p.m),
               elements = rows * static_cast<std::size_t>(p.hidden);
    // Rows behind the counts keep what they have.
    w.in_out<float8_e4m3>(elements);
    w.in_out<float>(Rows{.rows = static_cast<std::size_t>(p.groups) *
                                 static_cast<std::size_t>(scale_blocks(p.hidden)),
                         .columns = static_cast<std::size_t>(p.m),
                         .leading = static_cast<std::size_t>(scale_leading(p.m))});
    const std::vector<int> counts = drawn_rows(p, w.draw());
    w.input<T>(elements).input(std::span<const int>(counts));
    w.scalar(p.m).scalar(p.hidden).scalar(p.groups);
  };
  kernel.draws = kGroupDraws;
  kernel.computed_by(quantize_blocks_masked_reference<T>);
  kernel.tolerance = kSameBits;
  const auto drawn = [](P p) { return expectation(p, all_of) * p.hidden; };
  kernel.flops = [=](P p) { return 3 * drawn(p); };
  kernel.bytes = [=](P p) {
    return drawn(p) * (sizeof(T) + 1) +
           expectation(p, all_of) * scale_blocks(p.hidden) * sizeof(float) +
           1.0 * p.groups * sizeof(int);
  };
  kernel.cost = [=](const RowConfig& c, P p, const DeviceLimits& d) {
    return tile_cost(c, drawn(p), 5, d);
  };
  kernel.numerics = [](const RowConfig&, P) { return std::string("no sums"); };
  return kernel;
}

#define KILN_QUANTIZE(T)                                            \
  template RowKernel<HiddenRows> quantize_rows_base<T>();           \
  template RowKernel<HiddenRows> quantize_blocks_base<T>();         \
  template RowKernel<HiddenRows> quantize_tensor_base<T>();         \
  template RowKernel<HiddenRows> quantize_tensor_dynamic_base<T>(); \
  template RowKernel<MaskedRows> quantize_blocks_masked_base<T>();
KILN_QUANTIZE(float)
KILN_QUANTIZE(float16)
KILN_QUANTIZE(bfloat16)
#undef KILN_QUANTIZE

}  // namespace kiln::templates
