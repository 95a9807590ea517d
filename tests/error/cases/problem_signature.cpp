// A problem rule with other arguments than the kernel.
// expect: k.problem
#include "case.hpp"

void set(ScaleKernel& k) {
#ifdef MISTAKE
  k.problem = [](float*, int n) { return Line{n}; };
#else
  k.problem = [](float*, const float*, float, int n) { return Line{n}; };
#endif
}
