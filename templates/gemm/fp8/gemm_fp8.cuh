// Device half of gemm_fp8.hpp: the entries of gemm.cuh, with T = Fp8<...>.
#pragma once

#include "../../device/float8.cuh"
#include "../gemm.cuh"
