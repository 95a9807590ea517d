// A function with knobs has no alternatives.
// like: runtime/function/function.cpp
// expect: runtime/choice/field.hpp
#ifdef MISTAKE
#include "runtime/choice/field.hpp"
#else
#include "runtime/serve/engine.hpp"
#endif
