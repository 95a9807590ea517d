// The shipped kernels by name.
#include "kiln/error.hpp"
#include "kiln/registry.hpp"
#include "templates/kernels.hpp"

namespace kiln {

namespace {

/// `make` is called with a type's host representation, as `make(T{})`.
template <class Make>
RegisteredKernel family(std::string name, std::string summary, Make make) {
  return {name, std::move(summary), {"f32", "f16", "bf16"}, [name, make](std::string_view type) {
            if (type == "f32") return make(float{}).definition();
            if (type == "f16") return make(float16{}).definition();
            if (type == "bf16") return make(bfloat16{}).definition();
            throw UserError("kernel " + name + " has no type '" + std::string(type) +
                            "' (known: f32, f16, bf16)");
          }};
}

}  // namespace

Registry shipped_kernels() {
  Registry registry;
  registry.add(family("vector_add", "out[i] = a[i] + b[i]",
                      [](auto t) { return templates::vector_add_kernel<decltype(t)>(); }));
  registry.add(family("residual_add", "out[r][h] = x[r][h] + residual[r][h]",
                      [](auto t) { return templates::residual_add_kernel<decltype(t)>(); }));
  registry.add(family("rmsnorm", "y[r][h] = x[r][h] * rsqrt(mean(x[r]^2) + eps) * w[h]",
                      [](auto t) { return templates::rmsnorm_kernel<decltype(t)>(); }));
  registry.add(family("gemm", "C[m][n] = sum_k A[m][k] * B[n][k]",
                      [](auto t) { return templates::gemm_kernel<decltype(t)>(); }));
  return registry;
}

}  // namespace kiln
