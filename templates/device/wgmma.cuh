// Hopper's tensor cores (sm_90a): 64 x N products by four warps together, operands in shared
// memory.
#pragma once

#include "elements.cuh"

namespace kiln::templates {

/// Shared memory that this thread wrote is what the tensor cores read after the next barrier.
__device__ inline void wgmma_publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Registers of sums belong to the products that follow.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Ends a group of products.
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `kPending` groups are at work.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Rows of 128 bytes, contiguous, in which 16-byte accesses are swizzled: access q of row r lies at
/// place q ^ r % 8. `rows` is aligned to 1024 bytes, eight rows.
__device__ inline unsigned long long wgmma_descriptor(const void* rows) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(rows));
  constexpr unsigned long long kSwizzle128 = 1ull << 62, kEightRows = 1024ull >> 4 << 32;
  return kSwizzle128 | kEightRows | 1ull << 16 | (address & 0x3ffff) >> 4;
}
/// The same, `bytes` further on: whole eights of rows, or elements of k within a row.
__device__ inline unsigned long long wgmma_advance(unsigned long long descriptor, int bytes) {
  return descriptor + (bytes >> 4);
}

#define KILN_SUMS(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define KILN_SUMS_8(j)                                                                  \
  KILN_SUMS(j), KILN_SUMS(j + 1), KILN_SUMS(j + 2), KILN_SUMS(j + 3), KILN_SUMS(j + 4), \
      KILN_SUMS(j + 5), KILN_SUMS(j + 6), KILN_SUMS(j + 7)
#define KILN_REGISTERS_32                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KILN_REGISTERS_64                                                            \
  KILN_REGISTERS_32                                                                  \
  ", "                                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KILN_REGISTERS_128                                                                     \
  KILN_REGISTERS_64                                                                            \
  ", "                                                                                         \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
  "%111, "                                                                                     \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define KILN_WGMMA(n, type, registers, a, b, add, ...)                                       \
  asm volatile("{ .reg .pred p; setp.ne.s32 p, " add                                         \
               ", 0; "                                                                       \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers \
               "}, " a ", " b ", p, 1, 1, 0, 0; }"                                           \
               : __VA_ARGS__                                                                 \
               : "l"(rows), "l"(columns), "r"(static_cast<int>(adding)))
#define KILN_WGMMA_OF(type)                                                             \
  if constexpr (kTiles == 8)                                                            \
    KILN_WGMMA("64", type, KILN_REGISTERS_32, "%32", "%33", "%34", KILN_SUMS_8(0));     \
  else if constexpr (kTiles == 16)                                                      \
    KILN_WGMMA("128", type, KILN_REGISTERS_64, "%64", "%65", "%66", KILN_SUMS_8(0),     \
               KILN_SUMS_8(8));                                                         \
  else                                                                                  \
    KILN_WGMMA("256", type, KILN_REGISTERS_128, "%128", "%129", "%130", KILN_SUMS_8(0), \
               KILN_SUMS_8(8), KILN_SUMS_8(16), KILN_SUMS_8(24))

/// Starts d += a * b, or d = a * b if not `adding`, for a 64x16 `a` and a 16xN `b` of T, N = 8
/// kTiles. Warp w of the four holds rows 16 w ... 16 w + 15; with g = lane / 4, t = lane % 4,
/// d[j][0..1] are row g and d[j][2..3] row g + 8 of it, columns 8 j + 2 t, 8 j + 2 t + 1.
template <class T, int kTiles>
__device__ inline void wgmma_m64k16(float (&d)[kTiles][4], unsigned long long rows,
                                    unsigned long long columns, bool adding) {
  static_assert(kIsHalf<T> || kIsBfloat16<T>, "T: __half or __nv_bfloat16");
  static_assert(kTiles == 8 || kTiles == 16 || kTiles == 32, "N: 64, 128 or 256");
  if constexpr (kIsHalf<T>) {
    KILN_WGMMA_OF("f16");
  } else {
    KILN_WGMMA_OF("bf16");
  }
}

#undef KILN_SUMS
#undef KILN_SUMS_8
#undef KILN_REGISTERS_32
#undef KILN_REGISTERS_64
#undef KILN_REGISTERS_128
#undef KILN_WGMMA
#undef KILN_WGMMA_OF

}  // namespace kiln::templates
