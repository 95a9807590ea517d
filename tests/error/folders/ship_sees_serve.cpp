// Precompiling needs no handles.
// like: runtime/ship/precompile.cpp
// expect: runtime/serve/engine.hpp
#ifdef MISTAKE
#include "runtime/serve/engine.hpp"
#else
#include "runtime/ship/precompile.hpp"
#endif
