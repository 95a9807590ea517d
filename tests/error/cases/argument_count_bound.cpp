// An argument too many, for a kernel that is bound to a problem.
// expect: wrong number of arguments
#include "case.hpp"

void launch(const kiln::Runtime& runtime, float* y, const float* x) {
  const auto bound = runtime.tuned(scale()).at({100});
#ifdef MISTAKE
  bound({}, y, x, 2.0f, 100, 1);
#else
  bound({}, y, x, 2.0f, 100);
#endif
}
