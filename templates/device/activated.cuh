// The activations of kiln/epilogue.hpp where there is no place.
#pragma once

#include "elements.cuh"
#include "kiln/epilogue.hpp"

namespace kiln::templates {

template <class Activation>
__device__ float activated(Activation, float x) {
  return Activation{}(x, epilogue::Place{});
}

template <class Activation, class T>
__device__ float gated_product(T gate, T up) {
  return activated(Activation{}, to_float(gate)) * to_float(up);
}

}  // namespace kiln::templates
