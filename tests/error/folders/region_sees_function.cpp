// A region knows the functions in it by what they share with kernels.
// like: runtime/region/region.cpp
// expect: runtime/function/function_maker.hpp
#ifdef MISTAKE
#include "runtime/function/function_maker.hpp"
#else
#include "runtime/serve/engine.hpp"
#endif
