// The cache knows nothing of devices.
// like: cache/store.cpp
// expect: runtime/device/device.hpp
#ifdef MISTAKE
#include "runtime/device/device.hpp"
#else
#include "cache/store.hpp"
#endif
