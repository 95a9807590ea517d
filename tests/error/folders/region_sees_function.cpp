// A region knows the functions in it by what they share with kernels.
// like: runtime/region/region.cpp
// expect: runtime/function/maker.hpp
#ifdef MISTAKE
#include "runtime/function/maker.hpp"
#else
#include "runtime/serve/engine.hpp"
#endif
