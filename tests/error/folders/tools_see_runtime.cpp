// The command is a client of the public API.
// like: tools/main.cpp
// expect: runtime/engine.hpp
#ifdef MISTAKE
#include "runtime/engine.hpp"
#else
#include "kiln/kiln.hpp"
#endif
