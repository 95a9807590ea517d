// A search knows neither devices nor kernels.
// like: runtime/search/strategy.cpp
// expect: runtime/device/device.hpp
#ifdef MISTAKE
#include "runtime/device/device.hpp"
#else
#include "runtime/search/strategy.hpp"
#endif
