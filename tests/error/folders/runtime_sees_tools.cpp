// The runtime knows nothing of the command.
// like: runtime/engine.cpp
// expect: tools/commands.hpp
#ifdef MISTAKE
#include "tools/commands.hpp"
#else
#include "runtime/engine.hpp"
#endif
