// What every room uses knows no room.
// like: runtime/support/parallel.cpp
// expect: runtime/device/device.hpp
#ifdef MISTAKE
#include "runtime/device/device.hpp"
#else
#include "runtime/support/parallel.hpp"
#endif
