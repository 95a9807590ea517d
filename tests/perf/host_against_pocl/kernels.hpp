// Naive kernels in the words that CUDA C++ and OpenCL C share; what they name differently is a
// macro.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/device/host/block_scheduler.hpp"

namespace host_against_pocl {

/// In front of every kernel that Kiln compiles.
inline constexpr const char* kCudaWords = R"(
#define KERNEL extern "C" __global__
#define GLOBAL
#define SHARED __shared__
#define BARRIER __syncthreads()
#define THREAD(d) ((int)threadIdx.d)
#define BLOCK(d) ((int)blockIdx.d)
#define INDEX(d) ((int)(blockIdx.d * blockDim.d + threadIdx.d))
)";

/// In front of every kernel that PoCL compiles.
inline constexpr const char* kOpenClWords = R"(
#define KERNEL __kernel
#define GLOBAL __global
#define SHARED __local
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE)
#define DIMENSION_x 0
#define DIMENSION_y 1
#define THREAD(d) ((int)get_local_id(DIMENSION_##d))
#define BLOCK(d) ((int)get_group_id(DIMENSION_##d))
#define INDEX(d) ((int)get_global_id(DIMENSION_##d))
)";

/// One kernel `NAME(float* out, const float* a, const float* b, int m, int n)` and its launch.
struct Case {
  const char* name;
  const char* text;
  kiln::runtime::Extent grid, block;
  int m, n;
  std::size_t out, a, b;  ///< elements
  double tolerance;       ///< of two results, relative to the larger of 1 and the first one
};

inline std::vector<Case> cases() {
  constexpr int kLength = 1 << 23, kRows = 512, kColumns = 4096, kSide = 2048, kMatrix = 512;
  constexpr std::size_t kTable = std::size_t{kRows} * kColumns, kImage = std::size_t{kSide} * kSide,
                        kProduct = std::size_t{kMatrix} * kMatrix;
  return {
      {"vector_add",
       R"(
KERNEL void vector_add(GLOBAL float* out, GLOBAL const float* a, GLOBAL const float* b, int m, int n) {
  const int i = INDEX(x);
  if (i < n) out[i] = a[i] + b[i];
})",
       {kLength / 256},
       {256},
       1,
       kLength,
       kLength,
       kLength,
       kLength,
       0},
      {"residual_add",
       R"(
KERNEL void residual_add(GLOBAL float* out, GLOBAL const float* a, GLOBAL const float* b, int m, int n) {
  const int column = INDEX(x), row = INDEX(y);
  if (column < n && row < m) {
    const int i = row * n + column;
    out[i] = a[i] + 0.5f * b[column];
  }
})",
       {kColumns / 256, kRows},
       {256},
       kRows,
       kColumns,
       kTable,
       kTable,
       kColumns,
       1e-6},
      {"rms_norm",
       R"(
KERNEL void rms_norm(GLOBAL float* out, GLOBAL const float* a, GLOBAL const float* b, int m, int n) {
  SHARED float parts[256];
  const int t = THREAD(x), row = BLOCK(x) * n;
  float sum = 0;
  for (int i = t; i < n; i += 256) sum += a[row + i] * a[row + i];
  parts[t] = sum;
  BARRIER;
  for (int half_of = 128; half_of > 0; half_of /= 2) {
    if (t < half_of) parts[t] += parts[t + half_of];
    BARRIER;
  }
  const float scale = rsqrt(parts[0] / n + 1e-6f);
  for (int i = t; i < n; i += 256) out[row + i] = a[row + i] * scale * b[i];
})",
       {kRows},
       {256},
       kRows,
       kColumns,
       kTable,
       kTable,
       kColumns,
       1e-5},
      {"stencil",
       R"(
KERNEL void stencil(GLOBAL float* out, GLOBAL const float* a, GLOBAL const float* b, int m, int n) {
  const int x = INDEX(x), y = INDEX(y);
  if (x < 1 || y < 1 || x >= n - 1 || y >= m - 1) return;
  const int i = y * n + x;
  out[i] = b[0] * a[i] + b[1] * (a[i - 1] + a[i + 1] + a[i - n] + a[i + n]);
})",
       {kSide / 32, kSide / 8},
       {32, 8},
       kSide,
       kSide,
       kImage,
       kImage,
       2,
       1e-5},
      {"tiled_gemm",
       R"(
KERNEL void tiled_gemm(GLOBAL float* out, GLOBAL const float* a, GLOBAL const float* b, int m, int n) {
  SHARED float as[16][16];
  SHARED float bs[16][16];
  const int tx = THREAD(x), ty = THREAD(y), column = INDEX(x), row = INDEX(y);
  float sum = 0;
  for (int t = 0; t < n; t += 16) {
    as[ty][tx] = a[row * n + t + tx];
    bs[ty][tx] = b[(t + ty) * n + column];
    BARRIER;
    for (int i = 0; i < 16; ++i) sum += as[ty][i] * bs[i][tx];
    BARRIER;
  }
  out[row * n + column] = sum;
})",
       {kMatrix / 16, kMatrix / 16},
       {16, 16},
       kMatrix,
       kMatrix,
       kProduct,
       kProduct,
       kProduct,
       1e-4},
  };
}

}  // namespace host_against_pocl
