// What every kernel sees without including anything, as with NVRTC.
#pragma once

#include "kiln_atomics.h"
#include "kiln_conversions.h"
#include "kiln_device.h"
#include "kiln_math.h"
#include "kiln_memory.h"
#include "kiln_rounding.h"
#include "kiln_simd.h"
#include "kiln_warp.h"
