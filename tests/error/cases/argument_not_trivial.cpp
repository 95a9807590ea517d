// A kernel argument that cannot be copied byte by byte.
// expect: pointers or trivially copyable values
#include "case.hpp"

#ifdef MISTAKE
using Second = std::string;
#else
using Second = float;
#endif
kiln::Kernel<Scale, Line, void(float*, Second)> kernel{.space = ScaleSpace{{1, 1}}};
