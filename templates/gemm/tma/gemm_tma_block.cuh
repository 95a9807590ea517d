// Part of gemm_tma.cuh: what the threads of a block do, each in its role.
//
// A stage's life: the copying thread waits until the stage is empty in each block that it copies
// to, expects the stage's bytes at `full` and starts the copies. With scales of blocks a warp
// copies those of the stage, and arrives there, too. Consumers wait for `full`, multiply, and once
// the products are done arrive at `empty` of each block that copies to theirs.
#pragma once

#include "gemm_block_scales.cuh"
#include "gemm_pairs_tma.cuh"
#include "gemm_parted_sums.cuh"
#include "gemm_tma_fetched.cuh"
#include "gemm_tma_output.cuh"
#include "gemm_tma_parts.cuh"
#include "kiln/hopper.cuh"
#include "kiln/workspace.cuh"

namespace kiln::templates {

template <GemmTma c, class T, bool batched, class Epilogue, hopper::Lies rows_lie,
          hopper::Lies columns_lie,
          class Output = typename GemmTmaOutputOf<c, T, batched, Epilogue>::Type>
struct GemmTmaBody {
  static_assert(kGemmTmaFits<c, T, rows_lie, columns_lie>);

  static constexpr bool kPingpong = c.schedule == GemmSchedule::pingpong;
  static constexpr int kColumnTiles = c.block_n / 8, kRowTiles = c.row_tiles();
  static constexpr int kRowsBytes = c.block_m * c.block_k * c.element();  // of a stage
  static constexpr int kTileThreads = kPingpong ? 1 : c.consumers;        // warpgroups per tile
  /// Registers of a thread that copies, and of one that multiplies, with more than one consumer.
  static constexpr int kFewer = c.consumers == 3 ? 32 : c.held_sums() > 192 ? 24 : 40;
  static constexpr int kMore = c.consumers == 3 ? 160 : c.held_sums() > 192 ? 240 : 232;

  const hopper::TensorMap& rows_map;
  const hopper::TensorMap& columns_map;
  Output output;
  const GemmShape<batched>& shape;
  int m, n;

  unsigned char* stages;  // per stage: rows, then columns; boxes in the order of for_boxes()
  hopper::Barrier* full;
  hopper::Barrier* empty;
  int rank, rank_m, rank_n;  // in the cluster

  int first_slice, slices;  // of k, those of this block

  struct Place {
    int row, column;  // of the tile's first element in the product
    int batch;
  };

  /// Warps of a consumer that give up a stage: all, if each of them reads scales there.
  static constexpr int kReleasing = c.scaled() ? 4 : 1;
  /// Whether consumers multiply in turns (gemm_parted_sums.cuh).
  static constexpr bool kTurns = c.parted_tiles() == 1 && kTileThreads > 1;
  static constexpr bool kRepeats = requires { Epilogue::kRepeatable; };
  static constexpr int kFetchedStages = gemm_fetched_stages<c, Epilogue>();    // behind the slices
  static constexpr bool kStacked = requires { requires Epilogue::kStacked; };  // B: gate, then up

  /// The barriers, before the block's threads meet.
  __device__ __forceinline__ void init_barriers() const {
    if (threadIdx.x < c.stages) {
      // One thread copies operands, and the 32 of a warp copy scales of blocks.
      full[threadIdx.x].init(c.scaled() ? 33 : 1);
      empty[threadIdx.x].init(kTileThreads * kReleasing * (c.cluster_m + c.cluster_n - 1));
      hopper::publish_barriers();
    }
  }

  /// The block's part of the cluster's tile `index`. Neighbours in time share operands. A part that
  /// would reach beyond the product begins earlier, and overlaps its neighbour: TMA takes longer
  /// over rows that lie outside of an operand than over others.
  __device__ __forceinline__ Place place(unsigned index) const {
    int batch = 0;
    if constexpr (batched) {
      const unsigned tiles = c.tiles_m(m, n) * c.tiles_n(m, n);
      batch = static_cast<int>(index / tiles);
      index %= tiles;
    }
    return place(index, m, batch);
  }
  /// The same for the tile `index` of a batch that has `its_m` rows of C.
  __device__ __forceinline__ Place place(unsigned index, int its_m, int batch) const {
    const unsigned tiles_m = c.tiles_m(its_m, n), tiles_n = c.tiles_n(its_m, n);
    const unsigned across = c.along_n ? tiles_n : tiles_m, along = c.along_n ? tiles_m : tiles_n;
    const unsigned group = index / (c.group * along), in_group = index % (c.group * along);
    const unsigned first = group * c.group;
    const unsigned height = min(across - first, static_cast<unsigned>(c.group));
    const unsigned x = first + in_group % height, y = in_group / height;
    const unsigned tile_m = c.along_n ? y : x, tile_n = c.along_n ? x : y;
    Place at{static_cast<int>((tile_m * c.cluster_m + rank_m) * c.block_m),
             static_cast<int>((tile_n * c.cluster_n + rank_n) * c.block_n), batch};
    if constexpr (kRepeats) {
      at.row = min(at.row, last_begin<c.swap>((c.swap ? n : its_m) - c.block_m));
      at.column = min(at.column, last_begin<!c.swap>((c.swap ? its_m : n) - c.block_n));
    }
    return at;
  }
  /// Boxes begin at whole pieces of 16 bytes, and along n where groups do that share a scale, of B
  /// or of the results.
  template <bool along_n>
  __device__ __forceinline__ static int last_begin(int least) {
    constexpr int kPiece = along_n && kScalesResults<Epilogue> ? (c.swap ? c.block_m : c.block_n)
                           : along_n && c.scaled()             ? c.scale_piece(kGated<Epilogue>)
                                                               : 16 / c.kResult;  // C's
    return (max(least, 0) + kPiece - 1) / kPiece * kPiece;
  }
  __device__ __forceinline__ int rows() const { return c.swap ? n : m; }
  __device__ __forceinline__ int columns() const { return c.swap ? m : n; }
  /// Which batch of an operand belongs to a tile: all share one whose stride is 0.
  __device__ __forceinline__ int rows_batch(Place at) const {
    return (c.swap ? shape.stride_b : shape.stride_a) == 0 ? 0 : at.batch;
  }
  __device__ __forceinline__ int columns_batch(Place at) const {
    return (c.swap ? shape.stride_a : shape.stride_b) == 0 ? 0 : at.batch;
  }

  using Stage = GemmTmaStage<c.stages>;

  /// Calls box(offset in the operand's part of a stage, x, y) for each of `copied` rows' boxes,
  /// from `row` and `l` on, as the block's `part`. Boxes have rows of 128 bytes: box_k() k of one
  /// row, all rows of the operand one after the other, or (across) 64 rows at one k, all k of the
  /// stage.
  template <hopper::Lies lies, int block, int copied, class Box>
  __device__ __forceinline__ static void for_boxes(int part, int row, int l, Box box) {
    row += part * copied;
    if constexpr (lies == hopper::Lies::along_k) {
#pragma unroll
      for (int i = 0; i < c.block_k / c.box_k(); ++i)
        box((i * block + part * copied) * 128, l + i * c.box_k(), row);
    } else {
#pragma unroll
      for (int i = 0; i < copied / 64; ++i)
        box((part * (copied / 64) + i) * c.block_k * 128, row + i * 64, l);
    }
  }
  template <class Box>
  __device__ __forceinline__ void for_row_boxes(Place at, int slice, Box box) const {
    for_boxes<rows_lie, c.block_m, c.copied_m()>(rank_n, at.row, (first_slice + slice) * c.block_k,
                                                 box);
  }
  template <class Box>
  __device__ __forceinline__ void for_column_boxes(Place at, int slice, Box box) const {
    for_boxes<columns_lie, c.block_n, c.copied_n()>(rank_m, at.column,
                                                    (first_slice + slice) * c.block_k, box);
  }

  /// One thread sees to it that the first tile's first slices are in the L2 cache.
  __device__ __forceinline__ void prefetch(Place at) const {
    const auto fetch = [](const hopper::TensorMap& map, auto... place) {
      hopper::prefetch_tile(map, place...);
    };
    for (int slice = 0; slice < min(slices, c.stages); ++slice) {
      for_row_boxes(at, slice, [&](int, int x, int y) {
        at_box<c.swap>(x, y, rows_batch(at), [&](auto... place) { fetch(rows_map, place...); });
      });
      for_column_boxes(at, slice, [&](int, int x, int y) {
        at_box<!c.swap>(x, y, columns_batch(at),
                        [&](auto... place) { fetch(columns_map, place...); });
      });
    }
  }
  /// Calls act(the place of a box in its map); `of_b`: in B's.
  template <bool of_b, class Act>
  __device__ __forceinline__ static void at_box(int x, int y, int batch, Act act) {
    if constexpr (of_b && kStacked)
      act(x, 0, 0, y / (2 * kGatedGroup));
    else if constexpr (batched)
      act(x, y, batch);
    else
      act(x, y);
  }

  /// Bytes that a stage receives: a box has no more rows than its operand.
  __device__ __forceinline__ int received_bytes() const {
    const int copied_rows =
        rows_lie == hopper::Lies::along_k ? min(c.copied_m(), rows()) : c.copied_m();
    const int copied_columns =
        columns_lie == hopper::Lies::along_k ? min(c.copied_n(), columns()) : c.copied_n();
    return (copied_rows * c.cluster_n + copied_columns * c.cluster_m) * c.block_k * c.element();
  }

  /// One thread of the block copies all tiles' slices.
  __device__ __forceinline__ void copy(Place at, unsigned first, unsigned tiles, unsigned step) {
    const int bytes = received_bytes();
    Stage stage{0, 0};
#pragma unroll 1
    for (unsigned tile = first; tile < tiles; tile += step) {
      if (tile != first) at = place(tile);
      copy_slices(at, stage, bytes);
      if constexpr (kFetchedStages > 0)
        fetch_tile<c, batched>(output.epilogue.map, stages, full, empty, stage, m, at.row,
                               at.column, at.batch);
    }
  }
  /// It copies one tile's, each of received_bytes().
  __device__ __forceinline__ void copy_slices(Place at, Stage& stage, int bytes) const {
    unsigned row_blocks = 0, column_blocks = 0;
    for (int i = 0; i < c.cluster_n; ++i) row_blocks |= 1u << (rank_m + i * c.cluster_m);
    for (int i = 0; i < c.cluster_m; ++i) column_blocks |= 1u << (rank_n * c.cluster_m + i);
#pragma unroll 1
    for (int slice = 0; slice < slices; ++slice) {
      hopper::Barrier& barrier = full[stage.index];
      empty[stage.index].wait(stage.parity ^ 1);
      barrier.arrive_expect(bytes);
      unsigned char* const rows = stages + stage.index * c.stage_bytes();
      for_row_boxes(at, slice, [&](int offset, int x, int y) {
        at_box<c.swap>(x, y, rows_batch(at), [&](auto... place) {
          load_box<c.cluster_n>(row_blocks, rows + offset, rows_map, barrier, place...);
        });
      });
      for_column_boxes(at, slice, [&](int offset, int x, int y) {
        at_box<!c.swap>(x, y, columns_batch(at), [&](auto... place) {
          load_box<c.cluster_m>(column_blocks, rows + kRowsBytes + offset, columns_map, barrier,
                                place...);
        });
      });
      stage.next();
    }
  }
  /// A warp copies all tiles' scales of blocks.
  __device__ __forceinline__ void copy_scales(Place at, unsigned first, unsigned tiles,
                                              unsigned step) const {
    Stage stage{0, 0};
#pragma unroll 1
    for (unsigned tile = first; tile < tiles; tile += step) {
      if (tile != first) at = place(tile);
      copy_scales(at, stage);
    }
  }
  /// It copies one tile's, and passes the stages of what is fetched.
  __device__ __forceinline__ void copy_scales(Place at, Stage& stage) const {
    GemmTmaScaleCopy<c, kGated<Epilogue>> scales(
        scales_of(block_scales_in(output.epilogue), shape, at.batch), shape, at.row, at.column,
        first_slice);
#pragma unroll 1
    for (int slice = 0; slice < slices + kFetchedStages; ++slice) {
      empty[stage.index].wait(stage.parity ^ 1);
      if (slice < slices) {
        if constexpr (c.few_scales) {  // wait for the slice whose scales had this place
          const bool around = stage.index < c.scale_slots();
          const int before = stage.index + (around ? c.stages : 0) - c.scale_slots();
          empty[before].wait(stage.parity ^ around);
        }
        scales.copy(scales_of_stage(stage.index));
      }
      full[stage.index].arrive_after_copies();
      stage.next();
    }
  }
  __device__ __forceinline__ float* scales_of_stage(int stage) const {
    return reinterpret_cast<float*>(stages + c.scales_at()) +
           stage % c.scale_slots() * c.slice_scales();
  }

  using Sums = float[kRowTiles][kColumnTiles][4];

  /// The number of the thread's warpgroup among those that multiply.
  __device__ __forceinline__ static int consumer() {
    return hopper::uniform(static_cast<int>(threadIdx.x) / 128) - 1;
  }
  /// A consumer calls open_turns() before its first tile and close_turns() behind its last one,
  /// also if it has none.
  __device__ __forceinline__ static void open_turns() {
    if constexpr (kTurns)
      if (consumer() == c.consumers - 1) GemmTmaTurn<c>{consumer()}.pass();
  }
  __device__ __forceinline__ static void close_turns() {
    if constexpr (kTurns)
      if (consumer() == 0) GemmTmaTurn<c>{0}.wait();
  }

  /// The stage may be overwritten, as far as this warpgroup is concerned.
  __device__ __forceinline__ void release(int stage) {
    if constexpr (c.scaled()) __syncwarp();  // its lanes have read scales
    const int thread = static_cast<int>(threadIdx.x) % (128 / kReleasing);
    if constexpr (c.cluster_m * c.cluster_n == 1) {
      if (thread == 0) empty[stage].arrive();
    } else {
      if (thread < c.cluster_m * c.cluster_n &&
          (thread % c.cluster_m == rank_m || thread / c.cluster_m == rank_n))
        empty[stage].arrive_at(thread);
    }
  }

  /// Starts the products of a slice with as many tiles of 64 rows, and of columns, as there are
  /// sums. `turn`: when they may start (gemm_parted_sums.cuh).
  template <int tiles, int column_tiles, class Turn = GemmTmaAnyTime>
  __device__ __forceinline__ void multiply_slice(float (&sums)[tiles][column_tiles][4], int stage,
                                                 int first_row, bool adding, int first_column = 0,
                                                 Turn turn = {}) {
    constexpr bool kAcross = rows_lie == hopper::Lies::across;
    constexpr bool kColumnsAcross = columns_lie == hopper::Lies::across;
    // Bytes from a row, or a column, to the next, on average.
    constexpr int kRow = kAcross ? c.block_k * c.element() : 128;
    constexpr int kColumn = kColumnsAcross ? c.block_k * c.element() : 128;
    const unsigned char* const rows = stages + stage * c.stage_bytes();
    const auto a = hopper::operand<128, rows_lie>(rows + first_row * kRow);
    const auto b = hopper::operand<128, columns_lie>(rows + kRowsBytes + first_column * kColumn,
                                                     c.block_k * 128);
    hopper::multiply_fence();
    turn.wait();
#pragma unroll
    for (int l = 0; l < c.block_k; l += c.product_k()) {
      if (c.block_k - l == turn.kLeft * c.product_k()) turn.pass();
      const int box = l / c.box_k(), in_box = l % c.box_k() * c.element();
      const int at_row = kAcross ? l * 128 : box * c.block_m * 128 + in_box;
      const int at_column = kColumnsAcross ? l * 128 : box * c.block_n * 128 + in_box;
#pragma unroll
      for (int i = 0; i < tiles; ++i)
        hopper::multiply<GemmOperand<T>, rows_lie, columns_lie>(
            sums[i], hopper::advance(a, at_row + i * 64 * kRow), hopper::advance(b, at_column),
            adding || l > 0);
    }
    hopper::multiply_commit();
  }

  /// All slices of the tile at `place_of()`. `hand_over` is called when all products have been
  /// started.
  template <class PlaceOf, class HandOver>
  __device__ __forceinline__ void multiply(Sums& sums, Stage& stage, int first_row,
                                           PlaceOf place_of, HandOver hand_over) {
    if constexpr (c.scaled()) {
      const Place at = place_of();
      multiply_in_parts<c>(*this, sums, stage, first_row, hand_over,
                           GemmTmaFactors<c, kGated<Epilogue>>(at.row, at.column, first_row));
    } else if constexpr (c.parted_tiles() > 0)
      multiply_in_parts<c>(*this, sums, stage, first_row, hand_over, GemmTmaNoFactors<c>{});
    else
      multiply_at_once(sums, stage, first_row, hand_over);
  }
  template <class HandOver>
  __device__ __forceinline__ void multiply_at_once(Sums& sums, Stage& stage, int first_row,
                                                   HandOver hand_over) {
    int before = stage.index;
    full[stage.index].wait(stage.parity);
    multiply_slice(sums, stage.index, first_row, false);
    stage.next();
#pragma unroll 1
    for (int slice = 1; slice < slices; ++slice) {
      full[stage.index].wait(stage.parity);
      multiply_slice(sums, stage.index, first_row, true);
      hopper::multiply_wait<1>();
      release(before);
      before = stage.index;
      stage.next();
    }
    hand_over();
    hopper::multiply_wait<0>();
    release(before);
  }

  /// Waits for what is fetched for a tile, in the stages from this one on. A consumer does so
  /// before the other one has its turn, which passes these stages unseen: a barrier tells two
  /// phases apart, and no more.
  __device__ __forceinline__ void await_fetched(Stage stage) const {
#pragma unroll
    for (int i = 0; i < kFetchedStages; ++i) {
      full[stage.index].wait(stage.parity);
      stage.next();
    }
  }
  /// Stores a tile, and passes the stages with what has been fetched for it.
  __device__ __forceinline__ void store(const Sums& sums, Stage& stage, Place at, int first_row,
                                        int& buffer) {
    Stage fetched = stage;
    await_fetched(stage);
#pragma unroll
    for (int i = 0; i < kFetchedStages; ++i) stage.next();
    store_tile(sums, at, first_row, buffer, fetched);
    if constexpr (kFetchedStages > 0) {
      // All of the warpgroup's loads have ended before copies may overwrite what they read.
      hopper::publish_shared();
      hopper::named_sync(2 + static_cast<int>(threadIdx.x) / 128, 128);
#pragma unroll
      for (int i = 0; i < kFetchedStages; ++i) {
        release(fetched.index);
        fetched.next();
      }
    }
  }
  __device__ __forceinline__ void store_tile(const Sums& sums, Place at, int first_row, int& buffer,
                                             Stage fetched = {}) const {
    if constexpr (kQuantizes<Epilogue>) {
      output.store_tile(sums, at.row, at.column, first_row, buffer);
    } else {
      const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32) % 4;
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const int in_tile = first_row + i * 64 + warp * 16, row = at.row + in_tile;
        if constexpr (kFetchedStages > 0)
          output.store_rows(sums[i], row, at.column, at.batch, buffer,
                            GemmTmaFetched<c>{stages, fetched, in_tile});
        else if constexpr (c.store_tma)
          output.store_rows(sums[i], row, at.column, at.batch, buffer);
        else
#pragma unroll
          for (int j = 0; j < kColumnTiles; ++j)
            output.store_direct(sums[i][j], row, at.column + j * 8, at.batch);
      }
    }
  }

  // Blocks of a cluster that split k: each writes its sums, in units of 16 x 8, to the block whose
  // share they are, which adds them in the order of the blocks and stores them.
  static constexpr int kWarps = 4 * c.consumers;
  static constexpr int kUnits = c.units(), kShare = c.share();

  __device__ __forceinline__ static int consumer_warp() {
    return static_cast<int>(threadIdx.x) / 32 - 4;
  }
  /// Writes the lane's sums of each of its warp's units to `to(unit)`, the warp's place for it.
  template <class To>
  __device__ __forceinline__ void write_sums(const Sums& sums, To to) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = consumer_warp();
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        const float(&s)[4] = sums[i][j];
        to((i * kColumnTiles + j) * kWarps + warp)[lane] =
            slices > 0 ? make_float4(s[0], s[1], s[2], s[3]) : make_float4(0, 0, 0, 0);
      }
  }
  /// Adds a unit's sums of `count` parts, which lie `apart` units from each other, in the order of
  /// the parts, and stores them.
  template <int count>
  __device__ __forceinline__ void add_unit(const float4* parts, int apart, int unit,
                                           Place at) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float s[4] = {};
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float4* const from = parts + i * apart * 32 + lane;
      const float4 part = c.parts > 1 ? __ldcg(from) : *from;  // other blocks have written it
      s[0] += part.x;
      s[1] += part.y;
      s[2] += part.z;
      s[3] += part.w;
    }
    const int of = unit % kWarps, tile = unit / kWarps;  // whose unit, and which of its
    const int row = of / 4 * kRowTiles * 64 + tile / kColumnTiles * 64 + of % 4 * 16;
    output.store_direct(s, at.row + row, at.column + tile % kColumnTiles * 8, at.batch);
  }

  __device__ __forceinline__ void send_sums(const Sums& sums) {
    float4* const received = reinterpret_cast<float4*>(stages) + rank * kShare * 32;
    write_sums(sums, [&](int unit) {
      return hopper::at_block(received + unit % kShare * 32, unit / kShare);
    });
  }
  __device__ __forceinline__ void add_and_store(Place at) const {
    const float4* const received = reinterpret_cast<const float4*>(stages);
#pragma unroll 2
    for (int place = consumer_warp(); place < kShare; place += kWarps) {
      const int unit = rank * kShare + place;
      if (unit >= kUnits) break;
      add_unit<c.split_k>(received + place * 32, kShare, unit, at);
    }
  }

  // Parts of k: each block leaves its sums in the workspace, and the one that comes last to a tile,
  // or a step, adds them.

  /// Of all parts of a tile.
  __device__ __forceinline__ static float4* partial_sums(const Workspace& workspace,
                                                         unsigned tile) {
    return reinterpret_cast<float4*>(static_cast<unsigned char*>(workspace.scratch) +
                                     tile * c.tile_scratch());
  }
  __device__ __forceinline__ void leave_sums(const Sums& sums, float4* partial, int part) const {
    write_sums(sums, [&](int unit) { return partial + (part * kUnits + unit) * 32; });
  }
  /// Called by all threads that multiply, when their sums are written: whether all blocks of the
  /// tile have written theirs.
  __device__ __forceinline__ bool is_last(unsigned* semaphore) const {
    return comes_last(semaphore, c.parts, kWarps * 32, reinterpret_cast<unsigned*>(stages));
  }
};

}  // namespace kiln::templates
