// An argument is missing.
// expect: wrong number of arguments
#include "case.hpp"

void launch(const kiln::Runtime& runtime, float* y, const float* x) {
#ifdef MISTAKE
  runtime.tuned(scale())({}, y, x, 2.0f);
#else
  runtime.tuned(scale())({}, y, x, 2.0f, 100);
#endif
}
