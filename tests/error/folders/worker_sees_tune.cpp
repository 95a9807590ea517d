// Running trials elsewhere knows no tuner.
// like: runtime/worker/isolated_bench.cpp
// expect: runtime/tune/tuner.hpp
#ifdef MISTAKE
#include "runtime/tune/tuner.hpp"
#else
#include "runtime/worker/isolated_bench.hpp"
#endif
