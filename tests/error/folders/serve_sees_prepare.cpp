// One problem is served without knowing of many.
// like: runtime/serve/handle.cpp
// expect: runtime/prepare/tune_jobs.hpp
#ifdef MISTAKE
#include "runtime/prepare/tune_jobs.hpp"
#else
#include "runtime/serve/engine.hpp"
#endif
