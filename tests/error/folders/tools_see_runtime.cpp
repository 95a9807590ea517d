// The command is a client of the public API.
// like: tools/main.cpp
// expect: runtime/serve/engine.hpp
#ifdef MISTAKE
#include "runtime/serve/engine.hpp"
#else
#include "kiln/kiln.hpp"
#endif
