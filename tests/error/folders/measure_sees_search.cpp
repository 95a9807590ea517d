// Measuring knows no search.
// like: runtime/measure/finals.cpp
// expect: runtime/search/strategy.hpp
#ifdef MISTAKE
#include "runtime/search/strategy.hpp"
#else
#include "runtime/measure/finals.hpp"
#endif
