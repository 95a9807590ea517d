// Tuning knows no other ranks.
// like: runtime/tune/tuner.cpp
// expect: runtime/together/trials.hpp
#ifdef MISTAKE
#include "runtime/together/trials.hpp"
#else
#include "runtime/tune/tuner.hpp"
#endif
