// Values for a field that KILN_CONFIG does not list.
// expect: a field is not listed in KILN_CONFIG
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
constexpr auto space = kiln::Space<Pair, Line>{{1, 2}}.values(&Pair::second, {2, 3});
