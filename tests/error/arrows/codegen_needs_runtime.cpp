// A compiler runs where there is no device.
#include "kiln/occupancy.hpp"

int compiler_needs_device() { return kiln::occupancy({}, {}).blocks; }
