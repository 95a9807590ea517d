// Code generation knows nothing of devices.
// like: codegen/instance.cpp
// expect: runtime/device/device.hpp
#ifdef MISTAKE
#include "runtime/device/device.hpp"
#else
#include "codegen/compiler.hpp"
#endif
