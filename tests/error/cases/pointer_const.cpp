// A read-only array where the kernel writes.
// expect: an argument's type does not match
#include "case.hpp"

#ifdef MISTAKE
void launch(const kiln::Runtime& runtime, const float* y, const float* x) {
#else
void launch(const kiln::Runtime& runtime, float* y, const float* x) {
#endif
  runtime.tuned(scale())({}, y, x, 2.0f, 100);
}
