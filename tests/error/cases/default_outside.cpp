// The default is not among the values.
// expect: the default lies outside the listed values
#include "case.hpp"

#ifdef MISTAKE
constexpr auto space = ScaleSpace{{128, 4}}.values(&Scale::block, {64, 256}).checked();
#else
constexpr auto space = ScaleSpace{{128, 4}}.values(&Scale::block, {64, 128, 256}).checked();
#endif
