// A device does not know what is measured on it.
// like: runtime/device/module_data.cpp
// expect: runtime/measure/device_workload.hpp
#ifdef MISTAKE
#include "runtime/measure/device_workload.hpp"
#else
#include "runtime/device/device.hpp"
#endif
