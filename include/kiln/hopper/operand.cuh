// Part of kiln/hopper.cuh, on every target: operands of products in shared memory.
#pragma once

namespace kiln::hopper {

__device__ unsigned shared_address(const void* shared);  // each target has its own

/// How an operand lies in shared memory. along_k: a row of `swizzle` bytes holds consecutive k of
/// one row of A or column of B. across: a row holds consecutive rows of A or columns of B at one k.
enum class Lies { along_k, across };

/// An operand of multiply(), as the tensor cores take it.
struct Operand {
  unsigned long long bits;
};

/// The operand that begins at `tile`. It consists of rows of kSwizzle (128, 64 or 32) bytes without
/// gaps, swizzled as TMA does it, and begins at a multiple of 8 such rows. Lies::across with more
/// than kSwizzle bytes of rows or columns: the next ones begin `next` bytes further on.
template <int kSwizzle, Lies lies = Lies::along_k>
__device__ __forceinline__ Operand operand(const void* tile, unsigned next = 0) {
  static_assert(kSwizzle == 128 || kSwizzle == 64 || kSwizzle == 32,
                "swizzle: 128, 64 or 32 bytes");
  constexpr unsigned long long kMode = kSwizzle == 128 ? 1 : kSwizzle == 64 ? 2 : 3;
  constexpr unsigned long long kEightRows = 8 * kSwizzle >> 4;
  const unsigned long long leading = lies == Lies::across ? next >> 4 : 1;
  return {kMode << 62 | kEightRows << 32 | (leading & 0x3fff) << 16 |
          (shared_address(tile) & 0x3ffff) >> 4};
}
/// The operand `bytes` further on: k within a row (along_k), or whole eights of rows.
__device__ __forceinline__ Operand advance(Operand operand, int bytes) {
  return {operand.bits + (bytes >> 4)};
}

}  // namespace kiln::hopper
