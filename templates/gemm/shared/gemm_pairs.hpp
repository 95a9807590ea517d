// How the two halves of a gated product's weights (gemm_gated.hpp) lie: gate and up, of which two
// columns are one of C.
#pragma once

#include "gemm_problem.hpp"

namespace kiln::templates {

enum class GatedWeights { stacked, interleaved };

/// Rows of gate, and then of up, that lie together in interleaved weights.
inline constexpr int kGatedGroup = 8;
/// Rows of interleaved weights: a multiple of 16.
constexpr GemmStride gated_rows(int n) {
  return (GemmStride{n} + kGatedGroup - 1) / kGatedGroup * kGatedGroup * 2;
}

}  // namespace kiln::templates
