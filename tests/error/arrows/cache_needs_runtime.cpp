// The cache knows nothing of devices.
#include "kiln/occupancy.hpp"

int needs_device() { return kiln::occupancy({}, {}).blocks; }
