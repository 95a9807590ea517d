// Only a loaded kernel has symbols.
// expect: private
#include "case.hpp"

#ifdef MISTAKE
kiln::Symbol symbol(const kiln::DynamicBound&) {
  return kiln::Symbol("x", nullptr, 4, nullptr, {});
}
#else
kiln::Symbol symbol(const kiln::DynamicBound& bound) { return bound.symbol("x"); }
#endif
