// Part of kiln/hopper.cuh: 8x8 matrices of 2-byte elements between registers and shared memory.
#pragma once

#include "kiln/hopper/barrier.cuh"

namespace kiln::hopper {

/// Stores four 8x8 matrices of 2-byte elements. Lane 8q + r gives the address of row r of matrix q
/// (16 bytes, aligned); lane l holds in m[q] elements 2(l % 4), 2(l % 4) + 1 of row l / 4. The
/// whole warp calls it. `transposed`: lane l holds these elements of column l / 4.
template <bool transposed = false>
__device__ __forceinline__ void store_matrices(void* row, const unsigned (&m)[4]) {
  if constexpr (transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
}
/// The same with two matrices; lanes 0 to 15 give addresses.
template <bool transposed = false>
__device__ __forceinline__ void store_matrices(void* row, const unsigned (&m)[2]) {
  if constexpr (transposed)
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)),
        "r"(m[0]), "r"(m[1])
        : "memory");
  else
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)),
        "r"(m[0]), "r"(m[1])
        : "memory");
}
/// Loads four 8x8 matrices; addresses and elements as for store_matrices().
template <bool transposed = false>
__device__ __forceinline__ void load_matrices(unsigned (&m)[4], const void* row) {
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_address(row))
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_address(row))
                 : "memory");
}
/// Transposes an 8x8 matrix of 2-byte elements held as above. The whole warp calls it.
__device__ __forceinline__ unsigned transpose_matrix(unsigned m) {
  unsigned t;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(m));
  return t;
}

}  // namespace kiln::hopper
