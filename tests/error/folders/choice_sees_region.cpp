// A choice of one operation knows no regions.
// like: runtime/choice/choice.cpp
// expect: runtime/region/schedule.hpp
#ifdef MISTAKE
#include "runtime/region/schedule.hpp"
#else
#include "runtime/serve/engine.hpp"
#endif
