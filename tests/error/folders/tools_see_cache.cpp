// The command is a client of the public API.
// like: tools/main.cpp
// expect: cache/store.hpp
#ifdef MISTAKE
#include "cache/store.hpp"
#else
#include "kiln/kiln.hpp"
#endif
