// Device half of interleave_gate_up.hpp with T = e4m3.
#pragma once

#include "../../device/float8.cuh"
#include "../gated/interleave_gate_up.cuh"
