// The warp-wide instructions of the mma body: asynchronous copies, ldmatrix, mma.sync. On the host
// target each is computed lane by lane from the register layouts of the PTX ISA, so that a kernel
// written with them can be verified without a GPU.
#pragma once

#include "elements.cuh"

namespace kiln::templates {

/// A thread's copies from global to shared memory, in groups that complete in order. `kCopies` is
/// the most per group, `kGroups` the most groups in flight.
#ifndef KILN_HOST_TARGET

template <int kBytes, int kCopies, int kGroups>
struct AsyncCopies {
  /// Copies `kBytes` (4, 8 or 16, to and from multiples of it), or writes zeros if not `valid`.
  __device__ void copy(void* shared, const void* global, bool valid) {
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? kBytes : 0;
    if constexpr (kBytes == 16)  // past L1, which has no use for what goes to shared memory
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
                   "r"(bytes)
                   : "memory");
    else
      asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(address), "l"(global),
                   "r"(bytes), "n"(kBytes)
                   : "memory");
  }
  /// Copies the first `bytes` of 16, and writes zeros behind them.
  __device__ void copy_some(void* shared, const void* global, int bytes) {
    static_assert(kBytes == 16);
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
                 "r"(bytes)
                 : "memory");
  }
  /// Ends a group.
  __device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  /// Waits until at most `kPending` groups are in flight.
  template <int kPending>
  __device__ void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  }
};

#elif !defined(KILN_LATE_COPIES)

// The earliest moment: shows a buffer that is overwritten too soon.
template <int kBytes, int kCopies, int kGroups>
struct AsyncCopies {
  __device__ void copy(void* shared, const void* global, bool valid) {
    if (valid)
      __builtin_memcpy(shared, global, kBytes);
    else
      __builtin_memset(shared, 0, kBytes);
  }
  __device__ void copy_some(void* shared, const void* global, int bytes) {
    __builtin_memset(shared, 0, kBytes);
    __builtin_memcpy(shared, global, static_cast<unsigned long>(bytes));
  }
  __device__ void commit() {}
  template <int kPending>
  __device__ void wait() {}
};

#else

// The latest moment: shows a wait that is missing.
template <int kBytes, int kCopies, int kGroups>
struct AsyncCopies {
  struct Copy {
    void* shared;
    const void* global;
    int bytes;
  };
  Copy copies[kGroups + 1][kCopies];
  int counts[kGroups + 1];
  int oldest = 0, open = 0;

  __device__ AsyncCopies() { counts[0] = 0; }
  __device__ void copy(void* shared, const void* global, bool valid) {
    copy_some(shared, global, valid ? kBytes : 0);
  }
  __device__ void copy_some(void* shared, const void* global, int bytes) {
    copies[open][counts[open]++] = {shared, global, bytes};
  }
  __device__ void commit() {
    open = (open + 1) % (kGroups + 1);
    counts[open] = 0;
  }
  template <int kPending>
  __device__ void wait() {
    while ((open - oldest + kGroups + 1) % (kGroups + 1) > kPending) {
      for (int i = 0; i < counts[oldest]; ++i) {
        const Copy& c = copies[oldest][i];
        __builtin_memset(c.shared, 0, kBytes);
        __builtin_memcpy(c.shared, c.global, static_cast<unsigned long>(c.bytes));
      }
      oldest = (oldest + 1) % (kGroups + 1);
    }
  }
};

#endif

/// Loads four 8x8 matrices of 2-byte elements (ldmatrix.x4). Lane 8q + r gives the address of row r
/// of matrix q, 16-byte aligned in shared memory; lane l receives in `out[q]` elements 2(l % 4) and
/// 2(l % 4) + 1 of row l / 4 of matrix q, or, `transposed`, of column l / 4.
template <bool transposed = false, class T>
__device__ inline void load_matrices(unsigned (&out)[4], const T* row) {
  static_assert(sizeof(T) == 2, "T: 2-byte elements");
#ifndef KILN_HOST_TARGET
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
#else
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto rows = reinterpret_cast<unsigned long long>(row);
  for (int q = 0; q < 4; ++q)
    for (int e = 0; e < 2; ++e) {
      const int column = lane % 4 * 2 + e;
      const auto address = __shfl_sync(0xffffffffu, rows, 8 * q + (transposed ? column : lane / 4));
      unsigned short bits;
      __builtin_memcpy(&bits,
                       reinterpret_cast<const T*>(address) + (transposed ? lane / 4 : column), 2);
      out[q] = e == 0 ? bits : out[q] | static_cast<unsigned>(bits) << 16;
    }
#endif
}

/// d += a * b for a 16x16 `a` and a 16x8 `b` of T (mma.m16n8k16). With g = lane / 4, t = lane % 4,
/// a lane holds, two elements of consecutive k (a, b) or columns (d) per register or pair:
///   a[0], a[1]: rows g, g + 8, k = 2t;  a[2], a[3]: the same rows, k = 2t + 8
///   b[0], b[1]: k = 2t, 2t + 8, column g
///   d[0..1]: row g, d[2..3]: row g + 8, columns 2t, 2t + 1
template <class T>
__device__ inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  static_assert(kIsHalf<T> || kIsBfloat16<T>, "T: __half or __nv_bfloat16");
#ifndef KILN_HOST_TARGET
#define KILN_MMA(type)                                       \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type \
      ".f32 {%0, %1, %2, %3}, "                              \
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"        \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (kIsHalf<T>)
    KILN_MMA("f16");
  else
    KILN_MMA("bf16");
#undef KILN_MMA
#else
  const auto element = [](unsigned pair, int i) {
    T value;
    const auto bits = static_cast<unsigned short>(pair >> 16 * i);
    __builtin_memcpy(&value, &bits, 2);
    return to_float(value);
  };
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  for (int k = 0; k < 16; ++k) {
    const int q = k % 8 / 2, upper = k / 8;  // which lane of a group, which register, holds k
    float row[2], column[2];
    for (int i = 0; i < 2; ++i) {
      row[i] = element(__shfl_sync(0xffffffffu, a[2 * upper + i], 4 * g + q), k % 2);
      column[i] = element(__shfl_sync(0xffffffffu, b[upper], 4 * (2 * t + i) + q), k % 2);
    }
    for (int i = 0; i < 4; ++i) d[i] += row[i / 2] * column[i % 2];
  }
#endif
}

}  // namespace kiln::templates
