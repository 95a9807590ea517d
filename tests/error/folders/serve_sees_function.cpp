// What is served knows no functions.
// like: runtime/serve/engine.cpp
// expect: runtime/function/maker.hpp
#ifdef MISTAKE
#include "runtime/function/maker.hpp"
#else
#include "runtime/serve/engine.hpp"
#endif
