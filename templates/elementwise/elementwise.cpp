// Host half of vector_add.hpp, and of residual_add.hpp, which is the same sum over rows.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

#include "kiln/paths.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

using kiln::detail::UntypedKernel;

namespace {

template <class Problem>
constexpr Space<VectorAdd, Problem> elementwise_space() {
  return Space<VectorAdd, Problem>{{.block = 256, .items = 8}}
      .values(&VectorAdd::block, {64, 128, 256, 512, 1024})
      .values(&VectorAdd::items, {1, 2, 4, 8, 16, 32})
      .where("a block's threads fit the device",
             [](const VectorAdd& c, const Problem&, const DeviceLimits& d) {
               return c.threads() <= d.max_threads_per_block;
             })
      .checked();
}

Launch launch(const VectorAdd& c, long long elements) {
  return {{c.grid(elements)}, {static_cast<unsigned>(c.threads())}, c.shared_bytes()};
}

/// On the host, where a block's threads take turns, `items` are streams that are `block` elements
/// apart: they fall onto the same places of the first-level cache and, when there are too many,
/// displace each other. Nanoseconds of one core. A GPU is left to the general model.
double cost(const VectorAdd& c, long long elements, std::size_t element_bytes,
            const DeviceLimits& d) {
  if (!d.on_host()) return std::numeric_limits<double>::quiet_NaN();
  constexpr double kCacheBytes = 32 * 1024;
  const double overflow = 3.0 * c.tile() * static_cast<double>(element_bytes) / kCacheBytes;
  const double tile = 0.12 * c.tile() * (1 + 0.1 * std::log2(c.items)) * std::max(1.0, overflow);
  return c.grid(elements) * (tile + 20);
}

template <class T>
void add(T* out, const T* a, const T* b, std::size_t n) {
  tbb::parallel_for(tbb::blocked_range<std::size_t>(0, n, 1 << 16), [=](const auto& range) {
    for (std::size_t i = range.begin(); i < range.end(); ++i) {
      const float sum = static_cast<float>(a[i]) + static_cast<float>(b[i]);
      out[i] = T(sum);
    }
  });
}

/// What both kernels share.
template <class T, class Problem>
UntypedKernel<VectorAdd, Problem> sum_kernel(const std::string& name) {
  return {{.name = name,
           .source = {.file = templates_dir() / "elementwise" / (name + ".cuh")},
           .entry = "kiln::templates::" + name,
           .config_type = "kiln::templates::VectorAdd",
           .types = {device_name<T>()},
           .space = elementwise_space<Problem>(),
           .tolerance = {.relative = 0, .absolute = 0},  // one rounding, the same everywhere
           .numerics = [](const VectorAdd&, const Problem&) { return "one addition"; }}};
}

}  // namespace

template <class T>
UntypedKernel<VectorAdd, Elementwise> vector_add_base() {
  auto kernel = sum_kernel<T, Elementwise>("vector_add");
  kernel.launch = [](const VectorAdd& c, const Elementwise& p) { return launch(c, p.n); };
  kernel.relations = {{3, "n"}};
  kernel.bucket = [](const Elementwise& p) { return Elementwise{count_bucket(p.n)}; };
  kernel.workload = [](const Elementwise& p, Workload& w) {
    const auto n = static_cast<std::size_t>(p.n);
    w.output<T>(n).template input<T>(n).template input<T>(n).scalar(p.n);
  };
  kernel.computed_by(
      [](T* out, const T* a, const T* b, int n) { add(out, a, b, static_cast<std::size_t>(n)); });
  kernel.flops = [](const Elementwise& p) { return 1.0 * p.n; };
  kernel.bytes = [](const Elementwise& p) { return 3.0 * sizeof(T) * p.n; };
  kernel.cost = [](const VectorAdd& c, const Elementwise& p, const DeviceLimits& d) {
    return cost(c, p.n, sizeof(T), d);
  };
  return kernel;
}

template <class T>
UntypedKernel<VectorAdd, Activations> residual_add_base() {
  auto kernel = sum_kernel<T, Activations>("residual_add");
  kernel.launch = [](const VectorAdd& c, const Activations& p) { return launch(c, p.elements()); };
  kernel.relations = {{3, "rows"}, {4, "hidden"}};
  kernel.bucket = [](const Activations& p) { return Activations{count_bucket(p.rows), p.hidden}; };
  kernel.workload = [](const Activations& p, Workload& w) {
    const auto n = static_cast<std::size_t>(p.elements());
    w.output<T>(n).template input<T>(n).template input<T>(n);
    w.scalar(p.rows).scalar(p.hidden);
  };
  kernel.computed_by([](T* out, const T* x, const T* residual, int rows, int hidden) {
    add(out, x, residual, static_cast<std::size_t>(rows) * static_cast<std::size_t>(hidden));
  });
  kernel.flops = [](const Activations& p) { return 1.0 * static_cast<double>(p.elements()); };
  kernel.bytes = [](const Activations& p) {
    return 3.0 * sizeof(T) * static_cast<double>(p.elements());
  };
  kernel.cost = [](const VectorAdd& c, const Activations& p, const DeviceLimits& d) {
    return cost(c, p.elements(), sizeof(T), d);
  };
  return kernel;
}

#define KILN_SUMS(T)                                                   \
  template UntypedKernel<VectorAdd, Elementwise> vector_add_base<T>(); \
  template UntypedKernel<VectorAdd, Activations> residual_add_base<T>();
KILN_SUMS(float)
KILN_SUMS(float16)
KILN_SUMS(bfloat16)
#undef KILN_SUMS

}  // namespace kiln::templates
