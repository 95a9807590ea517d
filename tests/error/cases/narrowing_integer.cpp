// A 64-bit count for a 32-bit argument.
// expect: numbers must not narrow
#include "case.hpp"

#ifdef MISTAKE
using Count = long long;
#else
using Count = short;
#endif
void launch(const kiln::Runtime& runtime, float* y, const float* x, Count n) {
  runtime.tuned(scale())({}, y, x, 2.0f, n);
}
