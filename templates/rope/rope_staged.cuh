// Heads that are copied to shared memory ahead of the warps that rotate them.
#pragma once

#include "../device/stage_ring.cuh"
#include "rope_heads.cuh"

namespace kiln::templates {

template <class Table, class Position>
struct RopeTable {
  const Table* rows;
  const Position* positions;
  int rotary_dim, max_position;
};

/// A group of a token's heads.
struct RopeGroup {
  unsigned token, group;

  /// `tokens` tokens and `groups` groups further on, where a token has `of` groups.
  __device__ void advance(unsigned tokens, unsigned groups, unsigned of) {
    token += tokens;
    group += groups;
    if (group < of) return;
    group -= of;
    ++token;
  }
};

/// What the first lane of a warp has looked up for a stage's token.
struct RopeFound {
  long long place;  // in the caches
  bool known;       // the token's position
};

/// All tokens where c.stages_fit() and accesses are aligned to 16 bytes. Each warp walks over
/// groups of heads: their bytes and the table's row come to a stage, for which the first lane looks
/// up position and slot one group ahead. `heads_of(token, exists, head_dim)`: the token's heads.
/// Dynamic shared memory: c.shared_bytes(...).
template <RopeConfig c, RopeOrder order, bool norm, class T, class Table, class Position,
          class HeadsOf>
__device__ void rotate_staged(const RopeTable<Table, Position>& table, unsigned tokens,
                              unsigned all, float eps, HeadsOf heads_of) {
  constexpr int N = c.vector, kLanes = c.lanes(c.width), kAtOnce = 32 / kLanes;
  constexpr unsigned kEach = c.staged_heads(), kHeadBytes = c.width * sizeof(T);
  static_assert(c.pairs == 1 && N * sizeof(T) == 16 && c.width == 2 * kLanes * N,
                "stages: of heads of `width` elements, one pair of 16 bytes each for each thread");
  extern __shared__ __align__(128) unsigned char rope_stages[];
  __shared__ hopper::Barrier landed[c.warps()][c.stages];
  __shared__ RopeFound found[c.warps()][c.stages];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto row_bytes = static_cast<unsigned>(table.rotary_dim * sizeof(Table)),
             stage_bytes = c.stage_bytes(row_bytes, sizeof(T));
  StageRing<c.stages> ring(landed[warp], rope_stages + warp * c.stages * stage_bytes, stage_bytes);

  const unsigned groups = all / kEach, step = gridDim.x * c.warps(),
                 first = blockIdx.x * c.warps() + warp;
  const unsigned step_tokens = step / groups, step_groups = step - step_tokens * groups;
  const auto advance = [&](RopeGroup& at) { at.advance(step_tokens, step_groups, groups); };
  RopeGroup mine{first / groups, first % groups}, next = mine;
  long long place_to_come = 0, position = -1;
  const auto look_up = [&] {
    if (next.token >= tokens) return;
    auto heads = heads_of(next.token, true, c.width);
    heads.locate();
    place_to_come = heads.located();
    position = static_cast<long long>(table.positions[next.token]);
  };
  const auto fill = [&](int stage) {
    if (next.token >= tokens) return;
    const unsigned begin = next.group * kEach, end = begin + kEach;
    const bool known = position >= 0 && position < table.max_position;
    const unsigned row = known ? row_bytes : 0;
    const auto heads = heads_of(next.token, true, c.width);
    found[warp][stage] = {place_to_come, known};
    ring.fill(stage, kEach * kHeadBytes + row, [&](unsigned char* to, hopper::Barrier& barrier) {
      for (unsigned h = begin; h < end;) {
        const unsigned behind = heads.end_of(h), until = behind < end ? behind : end;
        hopper::load_bytes(to + (h - begin) * kHeadBytes, heads.from(h), (until - h) * kHeadBytes,
                           barrier);
        h = until;
      }
      if (row > 0)
        hopper::load_bytes(to + kEach * kHeadBytes, table.rows + position * table.rotary_dim, row,
                           barrier);
    });
    advance(next);
    look_up();
  };
  if (lane == 0) {
    ring.init();
    look_up();
#pragma unroll 1
    for (int s = 0; s < c.stages; ++s) fill(s);
  }
  __syncwarp();

  const RopePlace place =
      rope_place<c, order>(static_cast<int>(lane % kLanes), c.width, table.rotary_dim);
  __shared__ Pack<T, N> weights[2][norm ? c.width / N : 1];  // of q and of k
  if constexpr (norm) {
    const auto none = heads_of(0, false, c.width);
    for (unsigned i = threadIdx.x; i < c.width / N; i += c.block) {
      weights[0][i] = load_pack<N>(none.q_weight + i * N);
      weights[1][i] = load_pack<N>(none.k_weight + i * N);
    }
    __syncthreads();
  }
  for (; mine.token < tokens; advance(mine)) {
    const unsigned char* const data = ring.wait();
    const RopeFound token = found[warp][ring.stage()];
    const unsigned begin = mine.group * kEach;
    auto heads = heads_of(mine.token, false, c.width);
    heads.locate_at(token.place);
    float cosines[N], sines[N];
    load_angles<c, order>(AngleRow<Table>{reinterpret_cast<const Table*>(data + kEach * kHeadBytes),
                                          table.rotary_dim, token.known},
                          place, cosines, sines);
#pragma unroll
    for (int i = 0; i < c.heads; ++i) {
      const unsigned h = i * kAtOnce + lane / kLanes;
      const auto* const from = reinterpret_cast<const T*>(data + h * kHeadBytes);
      Pack<T, N> packs[2], weight[2] = {};
#pragma unroll
      for (int side = 0; side < 2; ++side) packs[side] = load_pack<N>(from + place.at[side]);
      float scale = 0.0f;
      if constexpr (norm) {
        const float squares = sum_of_squares(packs[0]) + sum_of_squares(packs[1]);
        scale = norm_scale(
            __fdividef(sum_over_lanes(squares, kLanes), static_cast<float>(c.width)) + eps);
#pragma unroll
        for (int side = 0; side < 2; ++side)
          weight[side] = weights[begin + h >= heads.q_heads][place.at[side] / N];
      }
      rotate_pack<c, order, norm>(heads.target(begin + h), packs, weight, scale, place, true,
                                  cosines, sines);
    }
    __syncwarp();  // all have used the stage
    if (lane == 0) fill(ring.stage());
    ring.next();
  }
}

/// The heads of all tokens. `wide`: all addresses and strides are aligned to `vector` elements.
template <RopeConfig c, RopeOrder order, bool norm, class T, class Table, class Position,
          class HeadsOf>
__device__ void rotate_tokens(const RopeTable<Table, Position>& table, int tokens, int all,
                              int head_dim, float eps, bool wide, HeadsOf heads_of) {
  static_assert((c.block & (c.block - 1)) == 0 && c.block >= 32 && c.block <= 1024,
                "block: a power of two from 32 to 1024 threads");
  static_assert((c.vector & (c.vector - 1)) == 0 && c.vector >= 2 && c.vector * sizeof(T) <= 16,
                "vector: a power of two of elements from 2, at most 16 bytes");
  static_assert(c.pairs >= 1 && c.heads >= 1, "pairs, heads: at least one per thread");
  const auto count = static_cast<unsigned>(all);
  const int width = c.width > 0 ? c.width : head_dim;
  wide = wide && head_dim == width &&
         c.fits(order, width, 1 << rope_lane_bits<c>(width), table.rotary_dim);
  const auto unit_of = [&](unsigned block) { return rope_unit<c>(block, tokens, all, width); };
  const auto angles_of = [&](const RopeUnit& unit) {
    return Angles<Table, Position>(table.rows, table.positions, unit, table.rotary_dim,
                                   table.max_position);
  };
  const auto by_elements = [&](const RopeUnit& unit) {
    rotate_unit<c, order, norm>(heads_of(unit.token, unit.exists, head_dim), angles_of(unit), unit,
                                count, head_dim, eps);
  };
  if constexpr (c.stages == 0) {
    const RopeUnit unit = unit_of(blockIdx.x);
    if (wide)
      rotate_packs<c, order, norm, T>(heads_of(unit.token, unit.exists, width), angles_of(unit),
                                      unit, count, width, eps);
    else
      by_elements(unit);
  } else if (wide && c.stages_fit(all, head_dim)) {
    rotate_staged<c, order, norm, T>(table, static_cast<unsigned>(tokens), count, eps, heads_of);
  } else {
    for (unsigned block = blockIdx.x; block < c.grid(tokens, all, head_dim); block += gridDim.x)
      by_elements(unit_of(block));
  }
}

}  // namespace kiln::templates
