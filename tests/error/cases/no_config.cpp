// A struct without KILN_CONFIG.
// expect: Reflected
#include "case.hpp"

struct Pair {
  int first;
};
#ifndef MISTAKE
KILN_CONFIG(Pair, first)
#endif
kiln::Space<Pair, Line> space{{1}};
