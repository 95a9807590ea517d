// A double for a float.
// expect: numbers must not narrow
#include "case.hpp"

#ifdef MISTAKE
using Factor = double;
#else
using Factor = float;
#endif
void launch(const kiln::Runtime& runtime, float* y, const float* x, Factor a) {
  runtime.tuned(scale())({}, y, x, a, 100);
}
