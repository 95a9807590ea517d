// Part of gemm_tma.cuh: products of a slice that have sums of their own, which are added to the
// others in float; with scales of blocks, times their factors.
#pragma once

#include "gemm_tma.hpp"
#include "kiln/hopper.cuh"

namespace kiln::templates {

/// When a consumer starts products: at any time.
struct GemmTmaAnyTime {
  static constexpr int kLeft = 0;
  __device__ __forceinline__ void wait() const {}
  __device__ __forceinline__ void pass() const {}
};

/// In turns with the tile's other consumers. The tensor cores serve all that have started
/// alternately, so that consumers that start together also end together, and then all of them add
/// while nothing is multiplied. In turns one adds while another one multiplies.
template <GemmTma c>
struct GemmTmaTurn {
  /// Products of a start that are still to be begun when the turn passes on. Measured on an H200:
  /// with fewer the tensor cores wait, with more the starts mix.
  static constexpr int kLeft = c.row_tiles() == 1 && !c.halved() ? 1 : 2;
  static constexpr int kFirstBarrier = 13;  // of up to three

  int consumer;

  __device__ __forceinline__ void wait() const {
    hopper::named_sync(kFirstBarrier + consumer, 256);
  }
  __device__ __forceinline__ void pass() const {
    hopper::named_arrive(kFirstBarrier + (consumer + 1) % c.consumers, 256);
  }
};

/// Where products of two tiles of 64 rows have registers at once: adds the sums of one slice while
/// the next one is multiplied. `add(i, part, j)` adds a part's sums to those of the thread's tile i
/// of 64 rows, from its tile j of 8 columns on.
template <GemmTma c, class Body, class Parts, class HandOver, class Factors, class Add>
__device__ __forceinline__ void multiply_alternately(Body& body, Parts& parts,
                                                     typename Body::Stage& stage, int first_row,
                                                     HandOver hand_over, const Factors& factors,
                                                     Add add) {
  typename Factors::Slice of_parts[2];
  int before = stage.index;
  const auto start = [&](int part) {
    body.full[stage.index].wait(stage.parity);
    body.multiply_slice(parts[part], stage.index, first_row, false);
    factors.load(of_parts[part], body.scales_of_stage(stage.index));
  };
  const auto next = [&](int part) {
    start(part);
    hopper::multiply_wait<1>();
    body.release(before);
    before = stage.index;
    stage.next();
    add(0, parts[1 - part], of_parts[1 - part], 0);
  };
  const auto end = [&](int last) {
    hand_over();
    hopper::multiply_wait<0>();
    body.release(before);
    add(0, parts[last], of_parts[last], 0);
  };
  start(0);
  stage.next();
  int left = body.slices - 1;
#pragma unroll 1
  for (; left >= 2; left -= 2) {
    next(1);
    next(0);
  }
  if (left == 1) {
    next(1);
    end(1);
  } else {
    end(0);
  }
}

/// Where only one part has registers: adds its sums before the next part is started, of the same
/// slice or of the next one, and has all at hand that the start needs.
template <GemmTma c, class Body, class Part, class HandOver, class Factors, class Add>
__device__ __forceinline__ void multiply_part_by_part(Body& body, Part& sums,
                                                      typename Body::Stage& stage, int first_row,
                                                      HandOver hand_over, const Factors& factors,
                                                      Add add) {
  typename Factors::Slice of_slice;
  constexpr int kColumns = c.parted_columns(), kHalves = c.block_n / kColumns;
  constexpr int kParts = c.row_tiles() * kHalves;  // of a slice
  const auto start = [&](int part) {
    const auto multiply = [&](auto turn) {
      body.multiply_slice(sums, stage.index, first_row + part / kHalves * 64, false,
                          part % kHalves * kColumns, turn);
    };
    if constexpr (Body::kTurns)
      multiply(GemmTmaTurn<c>{body.consumer()});
    else
      multiply(GemmTmaAnyTime{});
    if (part == 0) factors.load(of_slice, body.scales_of_stage(stage.index));
  };
  const auto add_part = [&](int part) {
    add(part / kHalves, sums, of_slice, part % kHalves * kColumns / 8);
  };
  // Ends a slice of which part 0 has been started, and starts the next one's.
  const auto end_slice = [&]<bool last>() {
#pragma unroll
    for (int part = 0; part < kParts - 1; ++part) {
      hopper::multiply_wait<0>();
      add_part(part);
      start(part + 1);
    }
    const int before = stage.index;
    stage.next();
    bool filled = true;
    if constexpr (last)
      hand_over();
    else
      filled = body.full[stage.index].passed_already(stage.parity);
    hopper::multiply_wait<0>();
    body.release(before);
    if (!filled) body.full[stage.index].wait(stage.parity);
    add_part(kParts - 1);
    if constexpr (!last) start(0);
  };
  body.full[stage.index].wait(stage.parity);
  start(0);
#pragma unroll 1
  for (int slice = 1; slice < body.slices; ++slice) end_slice.template operator()<false>();
  end_slice.template operator()<true>();
}

/// All slices of a tile, at least one. `factors`: gemm_block_scales.cuh.
template <GemmTma c, class Body, class HandOver, class Factors>
__device__ __forceinline__ void multiply_in_parts(Body& body, typename Body::Sums& sums,
                                                  typename Body::Stage& stage, int first_row,
                                                  HandOver hand_over, const Factors& factors) {
  constexpr int kPartTiles = c.parted_columns() / 8;
  float parts[c.parted_tiles()][1][kPartTiles][4];
#pragma unroll
  for (int i = 0; i < c.row_tiles(); ++i)
#pragma unroll
    for (int j = 0; j < c.block_n / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;
  const auto add = [&](int i, auto& part, const auto& of_part, int first_tile) {
#pragma unroll
    for (int j = 0; j < kPartTiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) hopper::multiplied(part[0][j][e]);
    factors.add(sums[i], part[0], of_part, i, first_tile);
  };
  if constexpr (c.parted_tiles() == 1)
    multiply_part_by_part<c>(body, parts[0], stage, first_row, hand_over, factors, add);
  else
    multiply_alternately<c>(body, parts, stage, first_row, hand_over, factors, add);
}

}  // namespace kiln::templates
