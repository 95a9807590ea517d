// Templates are a client of the public API.
// like: templates/elementwise/elementwise.cpp
// expect: runtime/device/device.hpp
#ifdef MISTAKE
#include "runtime/device/device.hpp"
#else
#include "kiln/kiln.hpp"
#endif
