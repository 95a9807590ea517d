// Heads that are normalized, rotated and copied: what the kernels of rope.cuh share.
#pragma once

#include "../device/elements.cuh"
#include "rope.hpp"

namespace kiln::templates {

/// Nothing is written where `to` is null.
template <class T>
struct RopeHead {
  const T* from = nullptr;
  T* to = nullptr;
  const T* weight = nullptr;  // null: no norm
  bool rotates = false;
};

/// What is written of a head.
template <class T>
struct RopeTarget {
  T* to;
  bool written;
  bool computed;  // rotated, and normalized where there is a norm
  bool moved;     // what is not computed is copied
};

/// What a thread works on: `lanes` threads share a group of heads of a token.
struct RopeUnit {
  unsigned token, group, groups;  // groups of a token
  unsigned lane, lanes;
  bool exists;  // all threads of a warp go the same way, because they exchange sums
};

/// The binary logarithm of c.lanes(), without its loop.
template <RopeConfig c>
__device__ int rope_lane_bits(int head_dim) {
  if constexpr (c.width > 0) {
    int bits = 0;
    while (1 << bits < c.lanes(c.width)) ++bits;
    return bits;
  }
  const unsigned turns = static_cast<unsigned>(c.pairs_of(head_dim) + c.pairs - 1) / c.pairs;
  return turns <= 1 ? 0 : turns >= 32 ? 5 : 32 - __clz(static_cast<int>(turns - 1));
}

/// This thread's unit of work if it is in block `block`.
template <RopeConfig c>
__device__ RopeUnit rope_unit(unsigned block, int tokens, int heads, int head_dim) {
  const int bits = rope_lane_bits<c>(head_dim);
  const unsigned lanes = 1u << bits, thread = threadIdx.x;
  const auto groups = static_cast<unsigned>(c.groups(heads));
  const unsigned unit = block * (c.block >> bits) + (thread >> bits);
  const unsigned token = unit / groups;
  return {token,  unit - token * groups,
          groups, thread & (lanes - 1),
          lanes,  token < static_cast<unsigned>(tokens)};
}

/// The loads in front of it begin before those behind it: the assembler would rather begin with
/// what most depends on, wait for that, and only then load the rest. All threads of the block call
/// it.
__device__ inline void loads_begin() {
#ifndef KILN_HOST_TARGET
  __syncthreads();
#endif
}

/// Cosines and sines, in rows of the table; where there is no row, all are NaN.
template <class Table>
struct AngleRow {
  const Table* row;
  int rotary;
  bool known = false;

  /// `N` of each, from `first` on, if they are wanted.
  template <int N>
  __device__ void load(int first, bool wanted, float* cosines, float* sines) const {
    Pack<Table, N> c, s;
#pragma unroll
    for (int e = 0; e < N; ++e)
      c.value[e] = s.value[e] = from_float<Table>(__int_as_float(0x7fffffff));
    if (known && wanted) {
      c = load_pack<N>(row + first);
      s = load_pack<N>(row + rotary / 2 + first);
    }
#pragma unroll
    for (int e = 0; e < N; ++e) {
      cosines[e] = to_float(c.value[e]);
      sines[e] = to_float(s.value[e]);
    }
  }
};

/// Those of a token's position.
template <class Table, class Position>
struct Angles : AngleRow<Table> {
  const Position* position;
  int max_position;

  __device__ Angles(const Table* table, const Position* positions, const RopeUnit& unit,
                    int rotary_dim, int max)
      : AngleRow<Table>{table, rotary_dim},
        position(unit.exists ? positions + unit.token : nullptr),
        max_position(max) {}
  /// Once, before load().
  __device__ void locate() {
    const long long p = position ? static_cast<long long>(*position) : -1;
    this->known = p >= 0 && p < max_position;
    if (this->known) this->row += p * this->rotary;
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

/// Where the two accesses of a pair begin, and which of them are there and rotated. Halved: they
/// are rotated together, or not at all. Interleaved: each by itself.
struct RopePlace {
  int at[2];
  bool exists[2], rotated[2];
};

template <RopeConfig c, RopeOrder order>
__device__ RopePlace rope_place(int pair, int head_dim, int rotary) {
  constexpr bool kHalved = order == RopeOrder::halved;
  // First come pairs whose elements are rotary / 2 apart, then those of the part that is not
  // rotated.
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

/// What a thread multiplies its heads with: it is read once for all of them.
template <RopeConfig c, RopeOrder order, class Found>
__device__ void load_angles(const Found& angles, const RopePlace& place, float (&cosines)[c.vector],
                            float (&sines)[c.vector]) {
  constexpr int N = c.vector;
  if constexpr (order == RopeOrder::halved) {
    angles.template load<N>(place.at[0], place.rotated[0], cosines, sines);
  } else {
#pragma unroll
    for (int side = 0; side < 2; ++side)
      angles.template load<N / 2>(place.at[side] / 2, place.rotated[side], cosines + side * (N / 2),
                                  sines + side * (N / 2));
  }
}

template <RopeOrder order, int N>
__device__ void rotate_sides(float (&x)[2][N], const RopePlace& place, const float (&cosines)[N],
                             const float (&sines)[N]) {
  if constexpr (order == RopeOrder::halved) {
    if (place.rotated[0])
#pragma unroll
      for (int e = 0; e < N; ++e) rotate_pair(x[0][e], x[1][e], cosines[e], sines[e]);
  } else {
#pragma unroll
    for (int side = 0; side < 2; ++side)
      if (place.rotated[side])
#pragma unroll
        for (int e = 0; e < N; e += 2)
          rotate_pair(x[side][e], x[side][e + 1], cosines[(side * N + e) / 2],
                      sines[(side * N + e) / 2]);
  }
}

/// Both sides of a pair of a head that `exists`, from registers to where the head goes.
template <RopeConfig c, RopeOrder order, bool norm, class T>
__device__ void rotate_pack(const RopeTarget<T>& head, const Pack<T, c.vector> (&packs)[2],
                            const Pack<T, c.vector> (&weights)[2], float scale,
                            const RopePlace& place, bool exists, const float (&cosines)[c.vector],
                            const float (&sines)[c.vector]) {
  constexpr int N = c.vector;
  if (!exists || !head.written) return;
  Pack<T, N> y[2] = {packs[0], packs[1]};
  bool changed[2] = {false, false};
  if (head.computed) {
    float x[2][N];
#pragma unroll
    for (int side = 0; side < 2; ++side)
#pragma unroll
      for (int e = 0; e < N; ++e) {
        x[side][e] = to_float(packs[side].value[e]);
        if constexpr (norm) x[side][e] *= scale * to_float(weights[side].value[e]);
      }
    rotate_sides<order>(x, place, cosines, sines);
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      changed[side] = norm || place.rotated[side];
      if (changed[side])
#pragma unroll
        for (int e = 0; e < N; ++e) y[side].value[e] = from_float<T>(x[side][e]);
    }
  }
#pragma unroll
  for (int side = 0; side < 2; ++side)
    if (place.exists[side] && (changed[side] || head.moved))
      store_head<c.streaming>(head.to + place.at[side], y[side]);
}

/// All accesses of `vector` elements. What a thread has of its heads is read at once, while its
/// position is still under way: no load of a head waits for another value, and nothing branches.
/// `heads.from(h)` is where the unit's token's head h is read, and `heads.at(h)` all of it, once
/// `heads.locate()` has been called.
template <RopeConfig c, RopeOrder order, bool norm, class T, class Found, class Heads>
__device__ void rotate_packs(Heads heads, Found angles, const RopeUnit& unit, unsigned all,
                             int head_dim, float eps) {
  constexpr int N = c.vector;
  RopePlace places[c.pairs];
#pragma unroll
  for (int p = 0; p < c.pairs; ++p)
    places[p] =
        rope_place<c, order>(static_cast<int>(unit.lane + p * unit.lanes), head_dim, angles.rotary);
  const auto number = [&](int i) { return unit.group + i * unit.groups; };
  const auto exists = [&](int i, int p, int side) {
    return unit.exists && number(i) < all && places[p].exists[side];
  };
  Pack<T, N> packs[c.heads][c.pairs][2];
#pragma unroll
  for (int i = 0; i < c.heads; ++i)
#pragma unroll
    for (int p = 0; p < c.pairs; ++p)
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        packs[i][p][side] = {};
        if (exists(i, p, side))
          packs[i][p][side] = load_head<c.streaming, N>(heads.from(number(i)) + places[p].at[side]);
      }
  loads_begin();
  angles.locate();
  float cosines[N], sines[N];
  load_angles<c, order>(angles, places[0], cosines, sines);
  // The weights of q or k are loaded when they change: few threads have heads of both.
  const T* of = nullptr;
  Pack<T, N> weights[2] = {};
  const auto weigh = [&](const T* weight, const RopePlace& place) {
    if (!norm || !weight || weight == of) return;
    of = weight;
#pragma unroll
    for (int side = 0; side < 2; ++side)
      if (place.exists[side]) weights[side] = load_pack<N>(weight + place.at[side]);
  };
  weigh(heads.weight(number(0)), places[0]);
  heads.locate();

  const unsigned zero = static_cast<unsigned>(head_dim) >> 31;
  float scales[c.heads];
  if constexpr (norm) {
#pragma unroll
    for (int i = 0; i < c.heads; ++i) {
      scales[i] = 0.0f;
#pragma unroll
      for (int p = 0; p < c.pairs; ++p)
        scales[i] += sum_of_squares(packs[i][p][0]) + sum_of_squares(packs[i][p][1]);
    }
    for (unsigned other = unit.lanes / 2; other > 0; other /= 2)
#pragma unroll
      for (int i = 0; i < c.heads; ++i)
        scales[i] += __shfl_xor_sync(0xffffffffu, scales[i], static_cast<int>(other));
#pragma unroll
    for (int i = 0; i < c.heads; ++i)
      scales[i] = norm_scale(__fdividef(scales[i], static_cast<float>(head_dim)) + eps);
  }

#pragma unroll
  for (int p = 0; p < c.pairs; ++p) {
    if (p > 0) {
      load_angles<c, order>(angles, places[p], cosines, sines);
      of = nullptr;
    }
#pragma unroll
    for (int i = 0; i < c.heads; ++i) {
      const RopeTarget<T> head = heads.target(number(i));
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        stay_packed(packs[i][p][side], norm ? zero : 0);
        if constexpr (norm) stay_packed(weights[side]);
      }
      weigh(heads.weight(number(i)), places[p]);
      rotate_pack<c, order, norm>(head, packs[i][p], weights, norm ? scales[i] : 0.0f, places[p],
                                  unit.exists && number(i) < all, cosines, sines);
    }
  }
}

/// Element by element, whatever the sizes and addresses.
template <RopeOrder order, bool norm, class T, class Found>
__device__ void rotate_elements(const RopeHead<T>& head, const Found& angles, const RopeUnit& unit,
                                int head_dim, float eps) {
  const int lane = static_cast<int>(unit.lane), lanes = static_cast<int>(unit.lanes);
  const bool normed = norm && head.to && head.weight;
  float scale = 1.0f;
  if constexpr (norm) {
    float squares = 0.0f;
    if (normed)
      for (int e = lane; e < head_dim; e += lanes)
        squares += to_float(head.from[e]) * to_float(head.from[e]);
    scale = norm_scale(sum_over_lanes(squares, unit.lanes) / static_cast<float>(head_dim) + eps);
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
      angles.template load<1>(i, true, &cosine, &sine);
      rotate_pair(a, b, cosine, sine);
      head.to[first] = from_float<T>(a);
      head.to[second] = from_float<T>(b);
    }
  if (!normed && head.from == head.to) return;
  for (int e = (head.rotates ? 2 * half : 0) + lane; e < head_dim; e += lanes)
    head.to[e] = normed ? from_float<T>(value(e)) : head.from[e];
}

/// The heads of a unit, element by element.
template <RopeConfig c, RopeOrder order, bool norm, class Found, class Heads>
__device__ void rotate_unit(Heads heads, Found angles, const RopeUnit& unit, unsigned all,
                            int head_dim, float eps) {
  angles.locate();
  heads.locate();
#pragma unroll 1
  for (int i = 0; i < c.heads; ++i) {
    const unsigned h = unit.group + i * unit.groups;
    decltype(heads.at(h)) head;
    if (unit.exists && h < all) head = heads.at(h);
    rotate_elements<order, norm>(head, angles, unit, head_dim, eps);
  }
}

}  // namespace kiln::templates
