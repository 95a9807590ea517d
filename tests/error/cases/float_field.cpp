// A field that is no integer.
// expect: config and problem fields are integers, bools or enums
#include "case.hpp"

struct Pair {
#ifdef MISTAKE
  float first;
#else
  long first;
#endif
};
KILN_CONFIG(Pair, first)
auto infos = kiln::field_infos<Pair>();
