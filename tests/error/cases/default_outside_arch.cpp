// A default of an architecture is not among the values.
// expect: the default lies outside the listed values
#include "case.hpp"

#ifdef MISTAKE
constexpr Scale kHopper{32, 4};
#else
constexpr Scale kHopper{64, 4};
#endif
constexpr auto space = ScaleSpace{{128, 4}}
                           .values(&Scale::block, {64, 128})
                           .default_on(kiln::ComputeCapability{90}, kHopper)
                           .checked();
