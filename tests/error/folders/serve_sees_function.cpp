// What is served knows no functions.
// like: runtime/serve/engine.cpp
// expect: runtime/function/function_maker.hpp
#ifdef MISTAKE
#include "runtime/function/function_maker.hpp"
#else
#include "runtime/serve/engine.hpp"
#endif
