// Device half of gemm_grouped_fp8.hpp: the entries of gemm_grouped.cuh, with T = Fp8<...>.
#pragma once

#include "../../device/float8.cuh"
#include "../grouped/gemm_grouped.cuh"
