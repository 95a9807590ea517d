// Templates are a client of the public API.
// like: templates/vector_add.cpp
// expect: runtime/device.hpp
#ifdef MISTAKE
#include "runtime/device.hpp"
#else
#include "kiln/kiln.hpp"
#endif
