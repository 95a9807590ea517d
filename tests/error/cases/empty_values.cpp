// A field with no value at all.
// expect: a field has an empty list of values
#include "case.hpp"

#ifdef MISTAKE
constexpr auto space = ScaleSpace{{128, 4}}.values(&Scale::block, {}).checked();
#else
constexpr auto space = ScaleSpace{{128, 4}}.values(&Scale::block, {128}).checked();
#endif
