// Device half of rope.hpp.
#pragma once

#include "rope_heads.cuh"
#include "rope_staged.cuh"

namespace kiln::templates {

/// What q and k are normalized with.
template <class T>
struct RopeNorm {
  const T* q_weight;
  const T* k_weight;
  float eps;
};

/// One of q, k and v, and where it goes.
template <class T>
struct RopeArray {
  T* to;
  const T* from;
  RopeStride to_stride, from_stride;
};

/// True when pointers and strides are multiples of `vector` elements, and the table of as many of
/// its own.
template <RopeConfig c, class T, class Table, class... Arrays>
__device__ bool rope_wide(RopeStride strides, const Table* table, const Arrays*... arrays) {
  return strides % c.vector == 0 && aligned(c.vector * sizeof(T), arrays...) &&
         aligned(c.vector * sizeof(Table), table);
}

/// A token's heads of q, and of k.
template <class T>
struct HeadsApart {
  const T *q_from, *k_from;
  T *q_to, *k_to;
  unsigned q_heads, head_dim;
  const T *q_weight, *k_weight;

  __device__ void locate() {}
  __device__ long long located() const { return 0; }
  __device__ void locate_at(long long) {}
  /// Behind the last head of h's array.
  __device__ unsigned end_of(unsigned h) const { return h < q_heads ? q_heads : ~0u; }
  __device__ const T* from(unsigned h) const {
    const bool of_q = h < q_heads;
    return (of_q ? q_from : k_from) + in_row(h);
  }
  __device__ RopeHead<T> at(unsigned h) const {
    const bool of_q = h < q_heads;
    return {from(h), (of_q ? q_to : k_to) + in_row(h), weight(h), true};
  }
  __device__ RopeTarget<T> target(unsigned h) const {
    const bool of_q = h < q_heads;
    return {(of_q ? q_to : k_to) + in_row(h), true, true, of_q ? q_from != q_to : k_from != k_to};
  }
  __device__ const T* weight(unsigned h) const { return h < q_heads ? q_weight : k_weight; }

 private:
  __device__ unsigned long long in_row(unsigned h) const {
    return static_cast<unsigned long long>(h < q_heads ? h : h - q_heads) * head_dim;
  }
};

template <RopeConfig c, RopeOrder order, bool norm, class T, class Table, class Position>
__device__ void rope_apart(const RopeArray<T>& q, const RopeArray<T>& k, const Table* table,
                           const Position* positions, int tokens, int q_heads, int kv_heads,
                           int head_dim, int rotary_dim, int max_position,
                           const RopeNorm<T>& norms) {
  const bool wide =
      rope_wide<c, T>(q.to_stride | q.from_stride | k.to_stride | k.from_stride, table, q.to,
                      q.from, k.to, k.from, norms.q_weight, norms.k_weight);
  rotate_tokens<c, order, norm, T>(
      RopeTable<Table, Position>{table, positions, rotary_dim, max_position}, tokens,
      q_heads + kv_heads, head_dim, norms.eps, wide, [&](unsigned token, bool, int width) {
        return HeadsApart<T>{q.from + token * q.from_stride,
                             k.from + token * k.from_stride,
                             q.to + token * q.to_stride,
                             k.to + token * k.to_stride,
                             static_cast<unsigned>(q_heads),
                             static_cast<unsigned>(width),
                             norms.q_weight,
                             norms.k_weight};
      });
}

/// Where a slot begins in the caches; negative: nowhere.
__device__ inline long long cache_place(long long slot, int blocks, int block_size,
                                        RopeStride block_stride, long long row) {
  if (slot < 0 || slot >= static_cast<long long>(blocks) * block_size) return -1;
  const long long block = slot >> 32 == 0
                              ? static_cast<unsigned>(slot) / static_cast<unsigned>(block_size)
                              : slot / block_size;
  return block * block_stride + (slot - block * block_size) * row;
}

/// A token's heads of q, and those of k and v, which go to the token's slot.
template <class T>
struct HeadsToCache {
  const T *q_from, *k_from, *v_from;
  T *q_to, *k_cache, *v_cache;
  unsigned q_heads, kv_heads, head_dim;
  const T *q_weight, *k_weight;
  const long* slot;  // null: none
  int blocks, block_size;
  RopeStride block_stride;
  long long place = -1;

  /// Not before it has to be known: what follows waits for the slot.
  __device__ void locate() {
    const long long s = slot ? *slot : -1;
    place = cache_place(s, blocks, block_size, block_stride,
                        static_cast<long long>(kv_heads) * head_dim);
  }
  __device__ long long located() const { return place; }
  __device__ void locate_at(long long found) { place = found; }
  /// Behind the last head of h's array.
  __device__ unsigned end_of(unsigned h) const {
    return h < q_heads ? q_heads : of_k(h) ? q_heads + kv_heads : ~0u;
  }
  __device__ const T* from(unsigned h) const {
    return (h < q_heads ? q_from : of_k(h) ? k_from : v_from) + in_row(h);
  }
  __device__ RopeHead<T> at(unsigned h) const {
    const bool of_q = h < q_heads;
    T* const cache = (of_k(h) ? k_cache : v_cache) + place;
    T* const to = of_q ? q_to : place >= 0 ? cache : nullptr;
    return {from(h), to ? to + in_row(h) : nullptr, weight(h), of_k(h)};
  }
  __device__ RopeTarget<T> target(unsigned h) const {
    const bool of_q = h < q_heads;
    T* const to = of_q ? q_to : (of_k(h) ? k_cache : v_cache) + place;
    return {to + in_row(h), of_q || place >= 0, of_k(h), !of_q || q_from != q_to};
  }
  __device__ const T* weight(unsigned h) const {
    return h < q_heads ? q_weight : of_k(h) ? k_weight : nullptr;
  }

 private:
  /// And not of q, or of q.
  __device__ bool of_k(unsigned h) const { return h < q_heads + kv_heads; }
  __device__ unsigned long long in_row(unsigned h) const {
    const unsigned before = h < q_heads ? 0 : of_k(h) ? q_heads : q_heads + kv_heads;
    return static_cast<unsigned long long>(h - before) * head_dim;
  }
};

template <RopeConfig c, RopeOrder order, bool norm, class T, class Table, class Position>
__device__ void rope_to_cache(const RopeArray<T>& q, T* k_cache, T* v_cache, const T* k, const T* v,
                              const Table* table, const Position* positions, const long* slots,
                              int tokens, int q_heads, int kv_heads, int head_dim, int rotary_dim,
                              int max_position, int blocks, int block_size, RopeStride block_stride,
                              RopeStride k_stride, RopeStride v_stride, const RopeNorm<T>& norms) {
  const int all = q_heads + 2 * kv_heads;
  const bool wide =
      rope_wide<c, T>(q.to_stride | q.from_stride | k_stride | v_stride | block_stride, table, q.to,
                      q.from, k_cache, v_cache, k, v, norms.q_weight, norms.k_weight);
  rotate_tokens<c, order, norm, T>(
      RopeTable<Table, Position>{table, positions, rotary_dim, max_position}, tokens, all, head_dim,
      norms.eps, wide, [&](unsigned token, bool exists, int width) {
        return HeadsToCache<T>{q.from + token * q.from_stride,
                               k + token * k_stride,
                               v + token * v_stride,
                               q.to + token * q.to_stride,
                               k_cache,
                               v_cache,
                               static_cast<unsigned>(q_heads),
                               static_cast<unsigned>(kv_heads),
                               static_cast<unsigned>(width),
                               norms.q_weight,
                               norms.k_weight,
                               exists ? slots + token : nullptr,
                               blocks,
                               block_size,
                               block_stride};
      });
}

template <RopeConfig c, class T, class Table, class Position, RopeOrder order>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rope(T* q_out, T* k_out, const T* q, const T* k, const Table* table, const Position* positions,
         int tokens, int q_heads, int kv_heads, int head_dim, int rotary_dim, int max_position,
         RopeStride q_out_stride, RopeStride k_out_stride, RopeStride q_stride,
         RopeStride k_stride) {
  rope_apart<c, order, false, T>({q_out, q, q_out_stride, q_stride},
                                 {k_out, k, k_out_stride, k_stride}, table, positions, tokens,
                                 q_heads, kv_heads, head_dim, rotary_dim, max_position, {});
}

template <RopeConfig c, class T, class Table, class Position, RopeOrder order>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rope_norm(T* q_out, T* k_out, const T* q, const T* k, const Table* table,
              const Position* positions, int tokens, int q_heads, int kv_heads, int head_dim,
              int rotary_dim, int max_position, RopeStride q_out_stride, RopeStride k_out_stride,
              RopeStride q_stride, RopeStride k_stride, const T* q_weight, const T* k_weight,
              float eps) {
  rope_apart<c, order, true, T>(
      {q_out, q, q_out_stride, q_stride}, {k_out, k, k_out_stride, k_stride}, table, positions,
      tokens, q_heads, kv_heads, head_dim, rotary_dim, max_position, {q_weight, k_weight, eps});
}

template <RopeConfig c, class T, class Table, class Position, RopeOrder order>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rope_paged(T* q_out, T* k_cache, T* v_cache, const T* q, const T* k, const T* v,
               const Table* table, const Position* positions, const long* slots, int tokens,
               int q_heads, int kv_heads, int head_dim, int rotary_dim, int max_position,
               int blocks, int block_size, RopeStride block_stride, RopeStride q_out_stride,
               RopeStride q_stride, RopeStride k_stride, RopeStride v_stride) {
  rope_to_cache<c, order, false, T>({q_out, q, q_out_stride, q_stride}, k_cache, v_cache, k, v,
                                    table, positions, slots, tokens, q_heads, kv_heads, head_dim,
                                    rotary_dim, max_position, blocks, block_size, block_stride,
                                    k_stride, v_stride, {});
}

template <RopeConfig c, class T, class Table, class Position, RopeOrder order>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rope_norm_paged(T* q_out, T* k_cache, T* v_cache, const T* q, const T* k, const T* v,
                    const Table* table, const Position* positions, const long* slots, int tokens,
                    int q_heads, int kv_heads, int head_dim, int rotary_dim, int max_position,
                    int blocks, int block_size, RopeStride block_stride, RopeStride q_out_stride,
                    RopeStride q_stride, RopeStride k_stride, RopeStride v_stride,
                    const T* q_weight, const T* k_weight, float eps) {
  rope_to_cache<c, order, true, T>({q_out, q, q_out_stride, q_stride}, k_cache, v_cache, k, v,
                                   table, positions, slots, tokens, q_heads, kv_heads, head_dim,
                                   rotary_dim, max_position, blocks, block_size, block_stride,
                                   k_stride, v_stride, {q_weight, k_weight, eps});
}

}  // namespace kiln::templates
