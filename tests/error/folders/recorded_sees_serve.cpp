// Measured spaces are devices, which know no handles.
// like: runtime/recorded/replay.cpp
// expect: runtime/serve/engine.hpp
#ifdef MISTAKE
#include "runtime/serve/engine.hpp"
#else
#include "runtime/tune/tuner.hpp"
#endif
