// Rotary position embedding of q and k, in one pass, with what stands around it as options. Of each
// head x of a token at position p, with cos = table[p][0 ... rotary_dim / 2) and
// sin = table[p][rotary_dim / 2 ... rotary_dim), 0 <= i < rotary_dim / 2:
//
//   y[a] = x[a] * cos[i] - x[b] * sin[i],  y[b] = x[b] * cos[i] + x[a] * sin[i]
//
//   RopeOrder::halved       a = i,     b = i + rotary_dim / 2  (GPT-NeoX, Llama as engines keep it)
//   RopeOrder::interleaved  a = 2 * i, b = 2 * i + 1           (GPT-J)
//
// y[h] = x[h] for rotary_dim <= h < head_dim. Four kernels:
//
//   rope             q_out = rope(q), k_out = rope(k)
//   rope_norm        the same of x[h] * rsqrt(mean(x^2) + eps) * weight[h], the mean over head_dim:
//                    q_weight for heads of q, k_weight for those of k. The mean + eps counts as
//                    2^-126 at least: zeros stay zeros, with an eps of 0, too
//   rope_paged       q_out = rope(q); rope(k) and v go to the blocks of a cache
//   rope_norm_paged  both
//
// Layouts, in elements. q, q_out: [tokens][q_heads][head_dim]; k, k_out, v: [tokens][kv_heads]
// [head_dim]. Tokens are *_stride apart, so that q, k and v may be slices of one array; heads have
// no gaps. table: [max_position][rotary_dim]. positions, slots: [tokens]. q_weight, k_weight:
// [head_dim]. k_cache, v_cache: [blocks][block_size][kv_heads][head_dim], blocks `block_stride`
// apart. Slot s is place s % block_size of block s / block_size.
//
// T = float, __half or __nv_bfloat16, of q, k, v, weights and caches; the table has elements of T
// or float. All is computed in float, and y rounds once. What is not rotated nor normalized keeps
// its bits. A NaN or an infinity reaches the elements that are computed of it: its pair, or its
// head's elements where there is a norm.
//
// A position below 0, or of max_position or more, reads no table: what would be rotated becomes
// NaN. A slot below 0 (-1 as engines have it for padding), or behind the cache, is not written;
// q_out is written all the same. Several tokens of one slot leave any of them there. Counts of 0
// are fine. A negative count, a rotary_dim that is odd or larger than head_dim, a stride less than
// a row, and a block_stride less than a block are a UserError.
//
// q_out may be q, and k_out may be k, with the same stride; then what is not computed is not
// written. No other arrays may overlap. Accesses move `vector` elements where pointers and strides
// are aligned to that many (the table's, to as many of its own), and halves of rotary_dim (halved)
// or rotary_dim (interleaved) and head_dim are multiples of it; else one by one, which is slow.
//
//   auto rope = runtime.tuned(kiln::templates::rope_kernel<kiln::bfloat16>());
//   rope(stream, q, k, q, k, table, positions, tokens, 32, 8, 128, 128, max_position, stride,
//        stride, stride, stride);
#pragma once

#include "kiln/config.hpp"
#if !defined(KILN_DEVICE_PASS)
#include <cstdint>

#include "kiln/kernel.hpp"
#endif

namespace kiln::templates {

enum class RopeOrder { halved, interleaved };

/// std::int64_t, as kernels know it.
using RopeStride = long;

struct RopeConfig {
  int block;         // threads per block: a power of two from 32 to 1024
  int vector;        // elements per access, at most 16 bytes: a power of two from 2
  int pairs;         // pairs of accesses per thread and head
  int heads;         // heads per thread, of one token
  bool streaming;    // heads are read and written as what will not be used again soon
  int width = 0;     // elements of a head, of which what is compiled makes use; 0: of any
  int resident = 0;  // threads of a multiprocessor for which registers are left; 0: as it comes
  int stages = 0;    // groups of heads in shared memory for each warp, which bulk copies (sm_90)
                     // fill ahead while warps walk over the tokens; 0: heads are read to registers

  constexpr int threads() const { return block; }
  constexpr int warps() const { return block / 32; }
  /// Pairs of accesses of a head.
  constexpr int pairs_of(int head_dim) const { return (head_dim / vector + 1) / 2; }
  /// Threads of a head: a power of two.
  constexpr int lanes(int head_dim) const {
    const int all = pairs_of(width > 0 ? width : head_dim);
    int lanes = 1;
    while (lanes < 32 && lanes * pairs < all) lanes *= 2;
    return lanes;
  }
  /// Whether accesses of `vector` elements make up a head and its parts.
  constexpr bool fits(RopeOrder order, int head_dim, int lanes, int rotary_dim) const {
    const int part = order == RopeOrder::halved ? rotary_dim / 2 : rotary_dim;
    return part % vector == 0 && head_dim % vector == 0 && pairs_of(head_dim) <= lanes * pairs;
  }
  /// Groups of heads of a token that has `all` of them: of a thread's, or of a warp's with stages.
  constexpr int groups(int all) const { return (all + heads - 1) / heads; }
  constexpr int staged_heads() const { return heads * 32 / lanes(width); }
  /// Whether each thread has a pair of accesses of each head of full groups, of 16 bytes.
  constexpr bool stages_fit(int all, int head_dim) const {
    return head_dim == width && width == 2 * lanes(width) * pairs * vector &&
           all % staged_heads() == 0;
  }
  /// Bytes of a group's heads and of the table's row behind them.
  constexpr unsigned stage_bytes(unsigned row_bytes, unsigned element_bytes) const {
    return static_cast<unsigned>(staged_heads() * width) * element_bytes + row_bytes;
  }
  /// Dynamic.
  constexpr unsigned shared_bytes(unsigned row_bytes, unsigned element_bytes) const {
    return static_cast<unsigned>(warps() * stages) * stage_bytes(row_bytes, element_bytes);
  }
  constexpr int resident_blocks() const { return resident > block ? resident / block : 1; }
  /// Blocks without stages. 2^32 - 1, which no device has, for what 32 bits do not count.
  constexpr unsigned grid(int tokens, int all, int head_dim) const {
    const long long each = block / lanes(head_dim), units = 1ll * tokens * groups(all);
    return head_dim > 0 && units + each < 4294967295ll
               ? static_cast<unsigned>((units + each - 1) / each)
           : head_dim > 0 ? 4294967295u
                          : 0u;
  }
};

struct RopeProblem {
  int tokens, q_heads, kv_heads;
  int head_dim, rotary_dim;  // elements
  RopeStride q_out_stride, k_out_stride, q_stride, k_stride;

  constexpr int heads() const { return q_heads + kv_heads; }
  /// If this is aligned, each of the strides is.
  constexpr RopeStride strides() const { return q_out_stride | k_out_stride | q_stride | k_stride; }
};

struct RopePagedProblem {
  int tokens, q_heads, kv_heads;
  int head_dim, rotary_dim;  // elements
  int block_size;            // slots
  RopeStride block_stride, q_out_stride, q_stride, k_stride, v_stride;

  constexpr int heads() const { return q_heads + 2 * kv_heads; }
  constexpr RopeStride strides() const {
    return block_stride | q_out_stride | q_stride | k_stride | v_stride;
  }
};

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::RopeConfig, block, vector, pairs, heads, streaming, width, resident,
            stages)
KILN_PROBLEM(kiln::templates::RopeProblem, tokens, q_heads, kv_heads, head_dim, rotary_dim,
             q_out_stride, k_out_stride, q_stride, k_stride)
KILN_PROBLEM(kiln::templates::RopePagedProblem, tokens, q_heads, kv_heads, head_dim, rotary_dim,
             block_size, block_stride, q_out_stride, q_stride, k_stride, v_stride)

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// Arguments: q_out, k_out, q, k, table, positions, tokens, q_heads, kv_heads, head_dim,
/// rotary_dim, max_position, q_out_stride, k_out_stride, q_stride, k_stride, and `Norm`.
template <class T, class Table, class Position, class... Norm>
using RopeKernelOf =
    Kernel<RopeConfig, RopeProblem,
           void(T*, T*, const T*, const T*, const Table*, const Position*, int, int, int, int, int,
                int, RopeStride, RopeStride, RopeStride, RopeStride, Norm...)>;
/// Arguments: q_out, k_cache, v_cache, q, k, v, table, positions, slots, tokens, q_heads, kv_heads,
/// head_dim, rotary_dim, max_position, blocks, block_size, block_stride, q_out_stride, q_stride,
/// k_stride, v_stride, and `Norm`.
template <class T, class Table, class Position, class... Norm>
using RopePagedKernelOf =
    Kernel<RopeConfig, RopePagedProblem,
           void(T*, T*, T*, const T*, const T*, const T*, const Table*, const Position*,
                const std::int64_t*, int, int, int, int, int, int, int, int, RopeStride, RopeStride,
                RopeStride, RopeStride, RopeStride, Norm...)>;

/// T is float, kiln::float16 or kiln::bfloat16; Table is T or float, Position is int or
/// std::int64_t.
template <class T, class Table = float, class Position = std::int64_t>
using RopeKernel = RopeKernelOf<T, Table, Position>;
template <class T, class Table = float, class Position = std::int64_t>
RopeKernel<T, Table, Position> rope_kernel(RopeOrder order = RopeOrder::halved);

/// Arguments: those of rope, q_weight, k_weight, eps.
template <class T, class Table = float, class Position = std::int64_t>
using RopeNormKernel = RopeKernelOf<T, Table, Position, const T*, const T*, float>;
template <class T, class Table = float, class Position = std::int64_t>
RopeNormKernel<T, Table, Position> rope_norm_kernel(RopeOrder order = RopeOrder::halved);

template <class T, class Table = float, class Position = std::int64_t>
using RopePagedKernel = RopePagedKernelOf<T, Table, Position>;
template <class T, class Table = float, class Position = std::int64_t>
RopePagedKernel<T, Table, Position> rope_paged_kernel(RopeOrder order = RopeOrder::halved);

/// Arguments: those of rope_paged, q_weight, k_weight, eps.
template <class T, class Table = float, class Position = std::int64_t>
using RopeNormPagedKernel = RopePagedKernelOf<T, Table, Position, const T*, const T*, float>;
template <class T, class Table = float, class Position = std::int64_t>
RopeNormPagedKernel<T, Table, Position> rope_norm_paged_kernel(RopeOrder order = RopeOrder::halved);

}  // namespace kiln::templates
#endif
