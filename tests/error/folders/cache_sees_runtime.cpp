// The cache knows nothing of devices.
// like: cache/store.cpp
// expect: runtime/device.hpp
#ifdef MISTAKE
#include "runtime/device.hpp"
#else
#include "cache/store.hpp"
#endif
