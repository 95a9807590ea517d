// A number where an array belongs.
// expect: an argument's type does not match
#include "case.hpp"

void launch(const kiln::Runtime& runtime, float* y, const float* x) {
#ifdef MISTAKE
  runtime.tuned(scale())({}, y, 2.0f, x, 100);
#else
  runtime.tuned(scale())({}, y, x, 2.0f, 100);
#endif
}
