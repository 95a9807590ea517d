// Host half of gated_fp8.hpp.
#include "templates/rows/gated_fp8.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

namespace {

template <class T>
RowValues gated_rows_of(const T* x, int hidden, float (*activation)(float)) {
  return [=](std::ptrdiff_t r) {
    std::vector<float> values(static_cast<std::size_t>(hidden));
    const T* const gate = x + r * 2 * hidden;
    const T* const up = gate + hidden;
    for (std::size_t h = 0; h < values.size(); ++h)
      values[h] = activation(static_cast<float>(gate[h])) * static_cast<float>(up[h]);
    return values;
  };
}

constexpr double kActivation = 5;  // nanoseconds of one core
/// An activation's last digits differ between devices.
constexpr NeighboursAllowed kActivationNeighbours{.part = 1e-4};

/// Gate and up of a tile take twice the registers that a quantizing kernel's input does.
Space<RowConfig, HiddenRows> gated_tiles(const Space<RowConfig, HiddenRows>& space) {
  return space
      .where_on(Target::Kind::cuda, "gate, up and products fit a thread's registers",
                [](const RowConfig& c, const HiddenRows&, const DeviceLimits&) {
                  return c.block < 512 || c.kept <= 4;
                })
      .checked();
}

/// `function`: registers that the activation takes.
template <int bytes, int function>
Space<RowConfig, HiddenRows> gated_rows() {
  return standing<bytes, RowUse{.rows = 2, .ahead = false, .function = function}>();
}

/// A quantizing kernel with values of its own, but for workload and reference.
template <class T>
RowKernel<HiddenRows> gated(RowKernel<HiddenRows> kernel, const HostActivation& activation,
                            const std::string& name, Fp8Scales scales) {
  kernel.name = std::string(activation.word) + "_mul_fp8_" + name;
  kernel.source = {.file = templates_dir() / "rows/gated_fp8.cuh"};
  kernel.entry = "kiln::templates::gated_fp8_" + name;
  kernel.types.push_back(activation.type);
  kernel.flops = [of_quantizing = kernel.flops](const HiddenRows& p) {
    return of_quantizing(p) + 8.0 * p.rows * p.hidden;
  };
  kernel.tolerance = kActivationNeighbours.tolerance();
  kernel.bytes = [of_one = kernel.bytes](const HiddenRows& p) {
    return of_one(p) + 1.0 * p.rows * p.hidden * sizeof(T);
  };
  kernel.check = [scales](const HiddenRows& p, const auto& got, const auto& expected) {
    return wrong_fp8(p, scales, kActivationNeighbours, std::get<0>(got), std::get<0>(expected));
  };
  return kernel;
}

}  // namespace

template <class T>
RowKernel<HiddenRows> gated_fp8_rows_base(const HostActivation& activation) {
  auto kernel = gated<T>(quantize_rows_base<T>(), activation, "rows", {Fp8Scales::Of::rows, 1});
  kernel.default_for = nullptr;  // that of quantize_rows counts on fewer registers
  // An error function takes more than the other activations.
  kernel.space =
      activation.word == "gelu" ? gated_rows<sizeof(T), 8>() : gated_rows<sizeof(T), 0>();
  kernel.workload = rows_workload<T, 2>;
  kernel.computed_by(
      [of = activation.of](float8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
        quantize_by_rows(q, scales, rows, hidden, gated_rows_of(x, hidden, of));
      });
  kernel.cost = [](const RowConfig& c, const HiddenRows& p, const DeviceLimits& d) {
    // What is not kept is computed twice.
    const double kept = std::min<double>(p.hidden, 1.0 * c.kept * c.step());
    return row_cost(c, p, {.element = 3, .passes = 2, .reductions = 1}, sizeof(T), d) +
           kActivation * p.rows * (2.0 * p.hidden - kept);
  };
  return kernel;
}

template <class T>
RowKernel<HiddenRows> gated_fp8_blocks_base(const HostActivation& activation) {
  auto kernel =
      gated<T>(quantize_blocks_base<T>(), activation, "blocks", {Fp8Scales::Of::blocks, 1});
  kernel.space = gated_tiles(kernel.space);
  kernel.workload = blocks_workload<T, 2>;
  kernel.computed_by(
      [of = activation.of](float8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
        quantize_by_blocks(q, scales, rows, hidden, gated_rows_of(x, hidden, of));
      });
  return kernel;
}

template <class T>
RowKernel<HiddenRows> gated_fp8_tensor_base(const HostActivation& activation) {
  auto kernel = gated<T>(quantize_tensor_base<T>(), activation, "tensor", {Fp8Scales::Of::all, 2});
  kernel.space = gated_tiles(kernel.space);
  kernel.launch = row_tiles_launch;
  kernel.workload = tensor_workload<T, 2>;
  kernel.computed_by(
      [of = activation.of](float8_e4m3* q, const T* x, const float* scale, int rows, int hidden) {
        quantize_by_scale(q, *scale, rows, hidden, gated_rows_of(x, hidden, of));
      });
  return kernel;
}

#define KILN_GATED_FP8(T)                                                         \
  template RowKernel<HiddenRows> gated_fp8_rows_base<T>(const HostActivation&);   \
  template RowKernel<HiddenRows> gated_fp8_blocks_base<T>(const HostActivation&); \
  template RowKernel<HiddenRows> gated_fp8_tensor_base<T>(const HostActivation&);
KILN_GATED_FP8(float)
KILN_GATED_FP8(float16)
KILN_GATED_FP8(bfloat16)
#undef KILN_GATED_FP8

}  // namespace kiln::templates
