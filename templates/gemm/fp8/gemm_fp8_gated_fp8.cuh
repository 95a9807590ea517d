// Device half of gemm_fp8_gated_fp8.hpp: the entries of gemm_gated_fp8.cuh, with T = Fp8<...>.
#pragma once

#include "../../device/float8.cuh"
#include "../gated/gemm_gated_fp8.cuh"
