// Building needs no device.
// like: runtime/build/builder.cpp
// expect: runtime/device/device.hpp
#ifdef MISTAKE
#include "runtime/device/device.hpp"
#else
#include "runtime/build/builder.hpp"
#endif
