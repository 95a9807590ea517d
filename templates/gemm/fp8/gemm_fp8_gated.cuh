// Device half of gemm_fp8_gated.hpp: the entries of gemm_gated.cuh, with T = Fp8<...>.
#pragma once

#include "../../device/float8.cuh"
#include "../gated/gemm_gated.cuh"
