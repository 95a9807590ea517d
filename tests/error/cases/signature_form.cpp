// A signature that does not return void.
// expect: signature has the form void(Arguments...)
#include "case.hpp"

#ifdef MISTAKE
kiln::Kernel<Scale, Line, int(float*)> kernel{};
#else
kiln::Kernel<Scale, Line, void(float*)> kernel{.space = ScaleSpace{{1, 1}}};
#endif
