// A value that is listed twice.
// expect: a value is listed twice
#include "case.hpp"

#ifdef MISTAKE
constexpr auto space = ScaleSpace{{128, 4}}.values(&Scale::block, {128, 64, 128}).checked();
#else
constexpr auto space = ScaleSpace{{128, 4}}.values(&Scale::block, {128, 64}).checked();
#endif
