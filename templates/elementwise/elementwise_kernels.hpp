// The typed elementwise kernels for C++ programs, which the headers beside this one declare, and
// what they are without their signatures. T is float, kiln::float16 or kiln::bfloat16.
#pragma once

#include "activation.hpp"
#include "gated_activation.hpp"
#include "kiln/detail/untyped_kernel.hpp"
#include "residual_add.hpp"
#include "vector_add.hpp"

namespace kiln::templates {

template <class T>
kiln::detail::UntypedKernel<VectorAdd, Elementwise> vector_add_base();
template <class T>
kiln::detail::UntypedKernel<VectorAdd, Activations> residual_add_base();
template <class T>
kiln::detail::UntypedKernel<GatedActivation, Activations> gated_activation_base(
    const HostActivation& activation);

template <class T>
VectorAddKernel<T> vector_add_kernel() {
  return vector_add_base<T>().template typed<VectorAddKernel<T>>(
      [](T*, const T*, const T*, int n) { return Elementwise{n}; });
}
template <class T>
ResidualAddKernel<T> residual_add_kernel() {
  return residual_add_base<T>().template typed<ResidualAddKernel<T>>(
      [](T*, const T*, const T*, int rows, int hidden) { return Activations{rows, hidden}; });
}
template <class T, class Activation>
GatedActivationKernel<T> gated_activation_kernel() {
  return gated_activation_base<T>(known_activation<Activation>())
      .template typed<GatedActivationKernel<T>>(
          [](T*, const T*, int rows, int hidden) { return Activations{rows, hidden}; });
}

}  // namespace kiln::templates
