// KILN_CONFIG leaves a field out.
// expect: must list every field
#include "case.hpp"

struct Pair {
  int first;
  int second;
};
#ifdef MISTAKE
KILN_CONFIG(Pair, first)
#else
KILN_CONFIG(Pair, first, second)
#endif
kiln::DynamicSpace space = kiln::Space<Pair, Line>{{1, 2}}.values(&Pair::first, {1, 2}).dynamic();
