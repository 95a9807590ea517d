// Heads that are normalized, rotated and copied: what the kernels of rope.cuh share.
#pragma once

#include "../device/elements.cuh"
#include "rope.hpp"

namespace kiln::templates {

/// Nothing is done where `to` is null.
template <class T>
struct RopeHead {
  const T* from = nullptr;
  T* to = nullptr;
  const T* weight = nullptr;  // null: no norm
  bool rotates = false;
};

/// What a thread works on: `lanes` threads share a group of heads of a token.
struct RopeUnit {
  unsigned token, group, groups;  // groups of a token
  unsigned lane, lanes;
  bool exists;  // all threads of a warp go the same way, because they exchange sums
};

template <RopeConfig c>
__device__ RopeUnit rope_unit(int tokens, int heads, int head_dim) {
  const auto lanes = static_cast<unsigned>(c.lanes(head_dim));
  const auto groups = static_cast<unsigned>(c.groups(heads));
  const unsigned unit = blockIdx.x * (c.block / lanes) + threadIdx.x / lanes;
  const unsigned token = unit / groups;
  return {token,  unit - token * groups,
          groups, threadIdx.x % lanes,
          lanes,  token < static_cast<unsigned>(tokens)};
}

/// A position's cosines and sines; where it has none, all are NaN.
template <class Table>
struct Angles {
  const Table* row;
  int rotary;

  template <class Position>
  __device__ Angles(const Table* table, const Position* positions, const RopeUnit& unit,
                    int rotary_dim, int max_position)
      : row(nullptr), rotary(rotary_dim) {
    if (!unit.exists) return;
    const long long p = positions[unit.token];
    if (p >= 0 && p < max_position) row = table + p * rotary_dim;
  }
  /// `N` of each, from `first` on.
  template <int N>
  __device__ void load(int first, float* cosines, float* sines) const {
    Pack<Table, N> c, s;
    if (row) {
      c = load_pack<N>(row + first);
      s = load_pack<N>(row + rotary / 2 + first);
    }
#pragma unroll
    for (int e = 0; e < N; ++e) {
      cosines[e] = row ? to_float(c.value[e]) : __int_as_float(0x7fffffff);
      sines[e] = row ? to_float(s.value[e]) : __int_as_float(0x7fffffff);
    }
  }
};

__device__ inline void rotate_pair(float& a, float& b, float cosine, float sine) {
  const float x = a;
  a = x * cosine - b * sine;
  b = b * cosine + x * sine;
}

__device__ inline float sum_over_lanes(float mine, unsigned lanes) {
  for (unsigned other = lanes / 2; other > 0; other /= 2)
    mine += __shfl_xor_sync(0xffffffffu, mine, static_cast<int>(other));
  return mine;
}

template <int bytes>
struct Word;
template <>
struct Word<4> {
  using Type = unsigned;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<16> {
  using Type = uint4;
};

template <bool streaming, int N, class T>
__device__ Pack<T, N> load_head(const T* from) {
  if constexpr (streaming) {
    const auto word = __ldcs(reinterpret_cast<const typename Word<N * sizeof(T)>::Type*>(from));
    Pack<T, N> pack;
    memcpy(&pack, &word, sizeof pack);
    return pack;
  }
  return load_pack<N>(from);
}

template <bool streaming, int N, class T>
__device__ void store_head(T* to, const Pack<T, N>& pack) {
  if constexpr (streaming) {
    typename Word<N * sizeof(T)>::Type word;
    memcpy(&word, &pack, sizeof pack);
    __stcs(reinterpret_cast<decltype(word)*>(to), word);
  } else {
    store_pack(to, pack);
  }
}

/// Where the two accesses of a pair begin, and which of them are there and rotated. Halved: they are
/// rotated together, or not at all. Interleaved: each by itself.
struct RopePlace {
  int at[2];
  bool exists[2], rotated[2];
};

template <RopeConfig c, RopeOrder order>
__device__ RopePlace rope_place(int pair, int head_dim, int rotary) {
  constexpr bool kHalved = order == RopeOrder::halved;
  // First come pairs whose elements are rotary / 2 apart, then those of the part that is not rotated.
  const int together = kHalved ? rotary / 2 / c.vector : 0;
  const int begin = kHalved ? rotary : 0, rest = (head_dim - begin) / c.vector;
  RopePlace place;
  if (pair < together) {
    place.at[0] = pair * c.vector;
    place.at[1] = rotary / 2 + place.at[0];
  } else {
    place.at[0] = begin + (pair - together) * c.vector;
    place.at[1] = place.at[0] + (rest + 1) / 2 * c.vector;
  }
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    place.exists[side] =
        pair < together || (pair - together < (rest + 1) / 2 && place.at[side] < head_dim);
    place.rotated[side] = place.exists[side] && place.at[side] < rotary;
  }
  return place;
}

/// All accesses of `vector` elements: what a thread has of its heads is read at once.
template <RopeConfig c, RopeOrder order, bool norm, class T, class Table>
__device__ void rotate_packs(const RopeHead<T> (&heads)[c.heads], const Angles<Table>& angles,
                             const RopeUnit& unit, int head_dim, float eps) {
  constexpr int N = c.vector;
  RopePlace places[c.pairs];
#pragma unroll
  for (int p = 0; p < c.pairs; ++p)
    places[p] =
        rope_place<c, order>(static_cast<int>(unit.lane + p * unit.lanes), head_dim, angles.rotary);
  Pack<T, N> packs[c.heads][c.pairs][2];
  const auto computed = [&](const RopeHead<T>& head, int p, int side) {
    return (norm && head.weight) || (head.rotates && places[p].rotated[side]);
  };
  const auto moved = [&](const RopeHead<T>& head, int p, int side) {
    return head.to && places[p].exists[side] && (head.from != head.to || computed(head, p, side));
  };
#pragma unroll
  for (int h = 0; h < c.heads; ++h)
#pragma unroll
    for (int p = 0; p < c.pairs; ++p)
#pragma unroll
      for (int side = 0; side < 2; ++side)
        if (moved(heads[h], p, side))
          packs[h][p][side] = load_head<c.streaming, N>(heads[h].from + places[p].at[side]);

  float scales[c.heads];
  if constexpr (norm) {
#pragma unroll
    for (int h = 0; h < c.heads; ++h) {
      float squares = 0.0f;
#pragma unroll
      for (int p = 0; p < c.pairs; ++p)
#pragma unroll
        for (int side = 0; side < 2; ++side)
          if (moved(heads[h], p, side)) squares += sum_of_squares(packs[h][p][side]);
      scales[h] = rsqrtf(sum_over_lanes(squares, unit.lanes) / static_cast<float>(head_dim) + eps);
    }
  }

#pragma unroll
  for (int p = 0; p < c.pairs; ++p) {
    float cosines[N], sines[N];
    if constexpr (order == RopeOrder::halved) {
      if (places[p].rotated[0]) angles.template load<N>(places[p].at[0], cosines, sines);
    } else {
#pragma unroll
      for (int side = 0; side < 2; ++side)
        if (places[p].rotated[side])
          angles.template load<N / 2>(places[p].at[side] / 2, cosines + side * (N / 2),
                                      sines + side * (N / 2));
    }
#pragma unroll
    for (int h = 0; h < c.heads; ++h) {
      const RopeHead<T>& head = heads[h];
      float x[2][N];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        if (!moved(head, p, side)) continue;
#pragma unroll
        for (int e = 0; e < N; ++e) x[side][e] = to_float(packs[h][p][side].value[e]);
        if constexpr (norm) {
          if (head.weight) {
            const Pack<T, N> weight = load_pack<N>(head.weight + places[p].at[side]);
#pragma unroll
            for (int e = 0; e < N; ++e) x[side][e] *= scales[h] * to_float(weight.value[e]);
          }
        }
        if constexpr (order == RopeOrder::interleaved) {
          if (head.rotates && places[p].rotated[side])
#pragma unroll
            for (int e = 0; e < N; e += 2)
              rotate_pair(x[side][e], x[side][e + 1], cosines[(side * N + e) / 2],
                          sines[(side * N + e) / 2]);
        }
      }
      if constexpr (order == RopeOrder::halved) {
        if (head.to && head.rotates && places[p].rotated[0])
#pragma unroll
          for (int e = 0; e < N; ++e) rotate_pair(x[0][e], x[1][e], cosines[e], sines[e]);
      }
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        if (!moved(head, p, side)) continue;
        if (computed(head, p, side))
#pragma unroll
          for (int e = 0; e < N; ++e) packs[h][p][side].value[e] = from_float<T>(x[side][e]);
        store_head<c.streaming>(head.to + places[p].at[side], packs[h][p][side]);
      }
    }
  }
}

/// Element by element, whatever the sizes and addresses.
template <RopeOrder order, bool norm, class T, class Table>
__device__ void rotate_elements(const RopeHead<T>& head, const Angles<Table>& angles,
                                const RopeUnit& unit, int head_dim, float eps) {
  const int lane = static_cast<int>(unit.lane), lanes = static_cast<int>(unit.lanes);
  const bool normed = norm && head.to && head.weight;
  float scale = 1.0f;
  if constexpr (norm) {
    float squares = 0.0f;
    if (normed)
      for (int e = lane; e < head_dim; e += lanes)
        squares += to_float(head.from[e]) * to_float(head.from[e]);
    scale = rsqrtf(sum_over_lanes(squares, unit.lanes) / static_cast<float>(head_dim) + eps);
  }
  if (!head.to) return;
  const auto value = [&](int e) {
    const float x = to_float(head.from[e]);
    return normed ? x * (scale * to_float(head.weight[e])) : x;
  };
  const int half = angles.rotary / 2;
  if (head.rotates)
    for (int i = lane; i < half; i += lanes) {
      const int first = order == RopeOrder::halved ? i : 2 * i;
      const int second = order == RopeOrder::halved ? half + i : 2 * i + 1;
      float a = value(first), b = value(second), cosine, sine;
      angles.template load<1>(i, &cosine, &sine);
      rotate_pair(a, b, cosine, sine);
      head.to[first] = from_float<T>(a);
      head.to[second] = from_float<T>(b);
    }
  if (!normed && head.from == head.to) return;
  for (int e = (head.rotates ? 2 * half : 0) + lane; e < head_dim; e += lanes)
    head.to[e] = normed ? from_float<T>(value(e)) : head.from[e];
}

/// `head_of(h)` is the unit's token's head h. `wide`: all addresses and strides are aligned to
/// `vector` elements.
template <RopeConfig c, RopeOrder order, bool norm, class T, class Table, class HeadOf>
__device__ void rotate_heads(const Angles<Table>& angles, const RopeUnit& unit, int all,
                             int head_dim, float eps, bool wide, HeadOf head_of) {
  static_assert((c.block & (c.block - 1)) == 0 && c.block >= 32 && c.block <= 1024,
                "block: a power of two from 32 to 1024 threads");
  static_assert((c.vector & (c.vector - 1)) == 0 && c.vector >= 2 && c.vector * sizeof(T) <= 16,
                "vector: a power of two of elements from 2, at most 16 bytes");
  static_assert(c.pairs >= 1 && c.heads >= 1, "pairs, heads: at least one per thread");
  RopeHead<T> heads[c.heads];
#pragma unroll
  for (int i = 0; i < c.heads; ++i) {
    const unsigned h = unit.group + i * unit.groups;
    if (unit.exists && h < static_cast<unsigned>(all)) heads[i] = head_of(static_cast<int>(h));
  }
  if (wide && c.fits(order, head_dim, angles.rotary))
    rotate_packs<c, order, norm>(heads, angles, unit, head_dim, eps);
  else
#pragma unroll 1
    for (int i = 0; i < c.heads; ++i) {
      const unsigned h = unit.group + i * unit.groups;
      RopeHead<T> head;
      if (unit.exists && h < static_cast<unsigned>(all)) head = head_of(static_cast<int>(h));
      rotate_elements<order, norm>(head, angles, unit, head_dim, eps);
    }
}

}  // namespace kiln::templates
