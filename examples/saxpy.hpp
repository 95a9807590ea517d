// y = a * x + y: config, problem and launch, read by the host compiler and by the kernel
// compiler.
#pragma once

#include <kiln/config.hpp>

struct Saxpy {
  int block;  // threads per block
  int items;  // elements per thread
  constexpr int tile() const { return block * items; }
};
KILN_CONFIG(Saxpy, block, items)

struct SaxpyProblem {
  int n;  // elements
};
KILN_PROBLEM(SaxpyProblem, n)
