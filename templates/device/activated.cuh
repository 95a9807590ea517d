// Activations for kernels that are bound by memory: faster than those of kiln/epilogue.hpp, and a
// little less exact.
#pragma once

#include "elements.cuh"
#include "kiln/epilogue.hpp"

namespace kiln::templates {

template <class Activation>
__device__ float activated(Activation, float x) {
  return Activation{}(x, epilogue::Place{});
}
#ifndef KILN_HOST_TARGET
/// An exact division takes a slow branch for very small numbers. This one is right to 2 units in
/// the last place, and 0 where `y` is above 87.3.
__device__ inline float over_one_plus_exp(float x, float y) {
  return __fdividef(x, 1.0f + __expf(y));
}
__device__ inline float activated(epilogue::Silu, float x) { return over_one_plus_exp(x, -x); }
__device__ inline float activated(epilogue::GeluTanh, float x) {
  return over_one_plus_exp(x, epilogue::detail::gelu_tanh_exponent(x));
}
#endif

template <class Activation, class T>
__device__ float gated_product(T gate, T up) {
  return activated(Activation{}, to_float(gate)) * to_float(up);
}

}  // namespace kiln::templates
