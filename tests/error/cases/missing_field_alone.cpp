// KILN_PROBLEM leaves a field out, and nothing uses the problem yet.
// expect: KILN_PROBLEM must list every field of Area
#include "case.hpp"

struct Area {
  int width;
  int height;
};
#ifdef MISTAKE
KILN_PROBLEM(Area, width)
#else
KILN_PROBLEM(Area, width, height)
#endif
