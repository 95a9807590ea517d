// What is served knows no functions.
// like: runtime/serve/engine.cpp
// expect: runtime/function/device.hpp
#ifdef MISTAKE
#include "runtime/function/device.hpp"
#else
#include "runtime/serve/engine.hpp"
#endif
