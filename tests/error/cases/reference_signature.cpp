// A reference with other arguments than the kernel.
// expect: k.reference
#include "case.hpp"

void set(ScaleKernel& k) {
#ifdef MISTAKE
  k.reference = [](float*, const double*, float, int) {};
#else
  k.reference = [](float*, const float*, float, int) {};
#endif
}
