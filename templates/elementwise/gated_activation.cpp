// Host half of gated_activation.hpp.
#include "templates/elementwise/gated_activation.hpp"

#include <string>
#include <type_traits>

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

namespace {

/// Exponentials differ by a few units in the last place between devices. Out rounds once.
template <class T>
constexpr double kRelative = std::is_same_v<T, float>     ? 1e-5
                             : std::is_same_v<T, float16> ? 1e-3
                                                          : 8e-3;
template <class T>
constexpr Tolerance kTolerance{
    .relative = kRelative<T>, .absolute = 2e-6, .norm = kRelative<T> / 2};

template <class T>
void activate(T* out, const T* x, int rows, int hidden, float (*activation)(float)) {
  const auto width = static_cast<std::size_t>(hidden);
  const auto row = [=](std::size_t r) {
    const T* const gate = x + 2 * r * width;
    for (std::size_t h = 0; h < width; ++h) {
      const float activated = activation(static_cast<float>(gate[h]));
      out[r * width + h] = T(activated * static_cast<float>(gate[width + h]));
    }
  };
  tbb::parallel_for(std::size_t{0}, static_cast<std::size_t>(rows), row);
}

}  // namespace

template <class T>
kiln::detail::UntypedKernel<GatedActivation, Activations> gated_activation_base(
    const HostActivation& activation) {
  kiln::detail::UntypedKernel<GatedActivation, Activations> kernel{
      {.name = std::string(activation.word) + "_mul",
       .source = {.file = templates_dir() / "elementwise/gated_activation.cuh"},
       .entry = "kiln::templates::gated_activation",
       .config_type = "kiln::templates::GatedActivation",
       .types = {device_name<T>(), activation.type},
       .space = Space<GatedActivation, Activations>{{.block = 256, .items = 8}}
                    .values(&GatedActivation::block, {64, 128, 256, 512, 1024})
                    .values(&GatedActivation::items, {1, 2, 4, 8, 16, 32})
                    .where("a block's threads fit the device",
                           [](const GatedActivation& c, const Activations&, const DeviceLimits& d) {
                             return c.threads() <= d.max_threads_per_block;
                           })
                    .checked(),
       .launch =
           [](const GatedActivation& c, const Activations& p) {
             return Launch{{c.grid(p.rows, p.hidden)},
                           {static_cast<unsigned>(c.threads())},
                           c.shared_bytes()};
           },
       .relations = {{2, "rows"}, {3, "hidden"}},
       .bucket = [](const Activations& p) { return Activations{count_bucket(p.rows), p.hidden}; },
       .workload =
           [](const Activations& p, Workload& w) {
             const auto n = static_cast<std::size_t>(p.elements());
             w.output<T>(n).template input<T>(2 * n).scalar(p.rows).scalar(p.hidden);
           },
       .tolerance = kTolerance<T>,
       .flops = [](const Activations& p) { return 8.0 * static_cast<double>(p.elements()); },
       .bytes =
           [](const Activations& p) { return 3.0 * sizeof(T) * static_cast<double>(p.elements()); },
       .numerics = [](const GatedActivation&, const Activations&) { return "one product"; }}};
  kernel.computed_by([of = activation.of](T* out, const T* x, int rows, int hidden) {
    activate(out, x, rows, hidden, of);
  });
  return kernel;
}

#define KILN_GATED_ACTIVATION(T)                                                               \
  template kiln::detail::UntypedKernel<GatedActivation, Activations> gated_activation_base<T>( \
      const HostActivation&);
KILN_GATED_ACTIVATION(float)
KILN_GATED_ACTIVATION(float16)
KILN_GATED_ACTIVATION(bfloat16)
#undef KILN_GATED_ACTIVATION

}  // namespace kiln::templates
