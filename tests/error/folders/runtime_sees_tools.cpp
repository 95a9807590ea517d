// The runtime knows nothing of the command.
// like: runtime/serve/engine.cpp
// expect: tools/commands.hpp
#ifdef MISTAKE
#include "tools/commands.hpp"
#else
#include "runtime/serve/engine.hpp"
#endif
