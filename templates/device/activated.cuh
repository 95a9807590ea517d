// Activations (kiln/epilogue.hpp) where a kernel is bound by memory.
#pragma once

#include "kiln/epilogue.hpp"

namespace kiln::templates {

template <class Activation>
__device__ float activated(Activation, float x) {
  return Activation{}(x, epilogue::Place{});
}
#ifndef KILN_HOST_TARGET
/// An exact division takes a slow branch for very small numbers. This one is right to 2 units in
/// the last place, and 0 where x is below -87.3.
__device__ inline float activated(epilogue::Silu, float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}
#endif

}  // namespace kiln::templates
