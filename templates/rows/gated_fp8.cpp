// Host half of gated_fp8.hpp.
#include "templates/rows/gated_fp8.hpp"

#include <string>
#include <type_traits>
#include <vector>

#include "kiln/paths.hpp"
#include "templates/elementwise/activation_names.hpp"
#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

namespace {

template <class T, class Activation>
auto gated_rows_of(const T* x, int hidden) {
  return [=](std::ptrdiff_t r) {
    std::vector<float> values(static_cast<std::size_t>(hidden));
    const T* const gate = x + r * 2 * hidden;
    const T* const up = gate + hidden;
    for (std::size_t h = 0; h < values.size(); ++h)
      values[h] =
          Activation{}(static_cast<float>(gate[h]), epilogue::Place{}) * static_cast<float>(up[h]);
    return values;
  };
}

constexpr double kActivation = 5;  // nanoseconds of one core

/// An activation's last digits differ between devices.
constexpr NeighboursAllowed kAllowed{.part = 1e-4};

std::ptrdiff_t scale_of_row(std::ptrdiff_t r, int) { return r; }

/// What is read beyond what a quantizing kernel reads.
template <class T>
double second_half(const HiddenRows& p) {
  return 1.0 * p.rows * p.hidden * sizeof(T);
}

/// Gate and up of a tile take twice the registers that a quantizing kernel's input does.
template <class Kernel>
auto gated_tiles(const Kernel& kernel) {
  return kernel.space
      .where_on(Target::Kind::cuda, "gate, up and products fit a thread's registers",
                [](const RowConfig& c, const HiddenRows&, const DeviceLimits&) {
                  return c.block < 512 || c.kept <= 4;
                })
      .checked();
}

/// A quantizing kernel with values of its own.
template <class T, class Activation, class Kernel>
Kernel gated(Kernel kernel, const char* scales) {
  kernel.name = std::string(activation_names<Activation>().word) + "_mul_fp8_" + scales;
  kernel.source = {.file = templates_dir() / "rows/gated_fp8.cuh"};
  kernel.entry = std::string("kiln::templates::gated_fp8_") + scales;
  kernel.types.push_back(activation_names<Activation>().type);
  kernel.flops = [of_quantizing = kernel.flops](const HiddenRows& p) {
    return of_quantizing(p) + 8.0 * p.rows * p.hidden;
  };
  kernel.tolerance = {};  // its check decides
  kernel.bytes = [of_one = kernel.bytes](const HiddenRows& p) {
    return of_one(p) + second_half<T>(p);
  };
  return kernel;
}

}  // namespace

template <class T, class Activation>
GatedFp8Kernel<T> gated_fp8_rows_kernel() {
  auto kernel = gated<T, Activation>(quantize_rows_kernel<T>(), "rows");
  // An error function takes more than the other activations.
  constexpr RowUse kUse{
      .rows = 2, .ahead = false, .function = std::is_same_v<Activation, epilogue::Gelu> ? 8 : 0};
  kernel.default_for = nullptr;  // that of quantize_rows counts on fewer registers
  kernel.space = row_space<T, HiddenRows, kUse>()
                     .default_on(Target::Kind::host, {.block = 128,
                                                      .rows_per_block = 1,
                                                      .vector = 16 / sizeof(T),
                                                      .kept = 4,
                                                      .online = false,
                                                      .persistent = false,
                                                      .resident = 2048})
                     .where("blocks do not walk over the rows",
                            [](const RowConfig& c, const HiddenRows&, const DeviceLimits&) {
                              return !c.persistent;
                            })
                     .checked();
  kernel.workload = rows_workload<T, 2>;
  kernel.reference = [](float8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
    quantize_by_rows(q, scales, rows, hidden, gated_rows_of<T, Activation>(x, hidden));
  };
  kernel.check = [](const HiddenRows& p, const auto& got, const auto& expected) {
    return wrong_fp8(p, std::get<0>(got), std::get<1>(got), std::get<0>(expected),
                     std::get<1>(expected), kAllowed, scale_of_row);
  };
  kernel.cost = [](const RowConfig& c, const HiddenRows& p, const DeviceLimits& d) {
    // What is not kept is computed twice.
    const double kept = std::min<double>(p.hidden, 1.0 * c.kept * c.step());
    return row_cost<T>(c, p, {.element = 3, .passes = 2, .reductions = 1}, d) +
           kActivation * p.rows * (2.0 * p.hidden - kept);
  };
  return kernel;
}

template <class T, class Activation>
GatedFp8Kernel<T> gated_fp8_blocks_kernel() {
  auto kernel = gated<T, Activation>(quantize_blocks_kernel<T>(), "blocks");
  kernel.space = gated_tiles(kernel);
  kernel.workload = blocks_workload<T, 2>;
  kernel.reference = [](float8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
    quantize_by_blocks(q, scales, rows, hidden, gated_rows_of<T, Activation>(x, hidden));
  };
  kernel.check = [](const HiddenRows& p, const auto& got, const auto& expected) {
    return wrong_fp8(p, std::get<0>(got), std::get<1>(got), std::get<0>(expected),
                     std::get<1>(expected), kAllowed,
                     [leading = scale_leading(p.rows)](std::ptrdiff_t r, int h) {
                       return h / kScaleBlock * leading + r;
                     });
  };
  return kernel;
}

template <class T, class Activation>
GatedFp8TensorKernel<T> gated_fp8_tensor_kernel() {
  auto kernel = gated<T, Activation>(quantize_tensor_kernel<T>(), "tensor");
  kernel.space = gated_tiles(kernel);
  kernel.launch = row_tiles_launch;
  kernel.workload = tensor_workload<T, 2>;
  kernel.reference = [](float8_e4m3* q, const T* x, const float* scale, int rows, int hidden) {
    quantize_by_scale(q, *scale, rows, hidden, gated_rows_of<T, Activation>(x, hidden));
  };
  kernel.check = [](const HiddenRows& p, const auto& got, const auto& expected) {
    const float* const scale = std::get<2>(expected);
    return wrong_fp8(p, std::get<0>(got), scale, std::get<0>(expected), scale, kAllowed,
                     [](std::ptrdiff_t, int) { return 0; });
  };
  return kernel;
}

#define KILN_GATED_FP8(T, Activation)                                            \
  template GatedFp8Kernel<T> gated_fp8_rows_kernel<T, epilogue::Activation>();   \
  template GatedFp8Kernel<T> gated_fp8_blocks_kernel<T, epilogue::Activation>(); \
  template GatedFp8TensorKernel<T> gated_fp8_tensor_kernel<T, epilogue::Activation>();
#define KILN_GATED_FP8_OF(Activation) \
  KILN_GATED_FP8(float, Activation)   \
  KILN_GATED_FP8(float16, Activation) \
  KILN_GATED_FP8(bfloat16, Activation)
KILN_GATED_FP8_OF(Silu)
KILN_GATED_FP8_OF(Gelu)
KILN_GATED_FP8_OF(GeluTanh)
KILN_GATED_FP8_OF(Relu)
#undef KILN_GATED_FP8_OF
#undef KILN_GATED_FP8

}  // namespace kiln::templates
