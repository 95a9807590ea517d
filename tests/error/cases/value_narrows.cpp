// A value that the field cannot hold.
// expect: narrow
#include "case.hpp"

#ifdef MISTAKE
constexpr auto space = ScaleSpace{{128, 4}}.values(&Scale::block, {128, 64.5}).checked();
#else
constexpr auto space = ScaleSpace{{128, 4}}.values(&Scale::block, {128, 64}).checked();
#endif
