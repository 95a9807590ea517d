// What starts processes and talks to them knows nothing of compiling.
// like: runtime/processes/frame.cpp
// expect: runtime/build/builder.hpp
#ifdef MISTAKE
#include "runtime/build/builder.hpp"
#else
#include "runtime/processes/frame.hpp"
#endif
