// A field that is given values twice.
// expect: a field is given values twice
#include "case.hpp"

#ifdef MISTAKE
constexpr auto space =
    ScaleSpace{{128, 4}}.values(&Scale::block, {128}).values(&Scale::block, {64}).checked();
#else
constexpr auto space =
    ScaleSpace{{128, 4}}.values(&Scale::block, {128}).values(&Scale::items, {4}).checked();
#endif
