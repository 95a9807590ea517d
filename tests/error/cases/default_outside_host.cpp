// The host's own default is not among the values.
// expect: the default lies outside the listed values
#include "case.hpp"

#ifdef MISTAKE
constexpr Scale kHost{32, 4};
#else
constexpr Scale kHost{64, 4};
#endif
constexpr auto space = ScaleSpace{{128, 4}}
                           .values(&Scale::block, {64, 128})
                           .default_on(kiln::Target::Kind::host, kHost)
                           .checked();
