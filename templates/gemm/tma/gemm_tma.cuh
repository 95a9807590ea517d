// Device half of gemm_tma.hpp: a GEMM (gemm.hpp) with TMA, wgmma and clusters.
#pragma once

#include "gemm_tma_block.cuh"

namespace kiln::templates {

/// The body of a kernel with c.threads() threads in clusters of c.cluster() blocks and
/// c.shared_bytes() bytes of dynamic shared memory. Maps: gemm_tma.hpp.
template <GemmTma c, GemmTranspose op, class T, bool batched, class Epilogue>
__device__ __forceinline__ void gemm_tma_body(
    const typename GemmTmaOutputOf<c, T, batched, Epilogue>::Array& out, const hopper::TensorMap& a,
    const hopper::TensorMap& b, const GemmShape<batched>& shape, const Epilogue& epilogue,
    const Workspace& workspace) {
  using Output = GemmTmaOutputOf<c, T, batched, Epilogue>;
  constexpr auto kALies = a_across(op) ? hopper::Lies::across : hopper::Lies::along_k;
  constexpr auto kBLies = b_across(op) ? hopper::Lies::across : hopper::Lies::along_k;
  using Body =
      GemmTmaBody<c, T, batched, Epilogue, c.swap ? kBLies : kALies, c.swap ? kALies : kBLies>;
  const int m = shape.m, n = shape.n;
  extern __shared__ __align__(1024) unsigned char gemm_tma_shared[];

  const int warpgroup = hopper::uniform(static_cast<int>(threadIdx.x) / 128);
  hopper::Barrier* const barriers =
      reinterpret_cast<hopper::Barrier*>(gemm_tma_shared + c.barriers_at());
  const int rank = c.cluster() == 1 ? 0 : static_cast<int>(hopper::cluster_rank());
  const int all_slices = static_cast<int>(c.tiles(shape.k, c.block_k));
  constexpr int kParts = c.split_k * c.parts;  // of k
  const int part = c.parts > 1 ? static_cast<int>(blockIdx.x % c.parts) : rank;
  const int first_slice = kParts == 1 ? 0 : static_cast<int>(1ll * all_slices * part / kParts);
  const int end_slice =
      kParts == 1 ? all_slices : static_cast<int>(1ll * all_slices * (part + 1) / kParts);
  Body body{.rows_map = c.swap ? b : a,
            .columns_map = c.swap ? a : b,
            .output = Output::of(epilogue, shape, gemm_tma_shared + c.buffer_bytes(), out),
            .shape = shape,
            .m = m,
            .n = n,
            .stages = gemm_tma_shared,
            .full = barriers,
            .empty = barriers + c.stages,
            .rank = rank,
            .rank_m = c.split_k > 1 ? 0 : rank % c.cluster_m,
            .rank_n = c.split_k > 1 ? 0 : rank / c.cluster_m,
            .first_slice = first_slice,
            .slices = end_slice - first_slice};

  body.init_barriers();
  if (threadIdx.x == 32) {
    hopper::prefetch_map(a);
    hopper::prefetch_map(b);
    body.output.prefetch();
    if constexpr (Body::kFetchedStages > 0) hopper::prefetch_map(epilogue.map);
  }
  const unsigned first = blockIdx.x / (c.cluster() * c.parts);
  const auto start = body.place(first);  // before the barrier, which takes its time anyway
  if constexpr (c.cluster() > 1)
    hopper::cluster_meet();
  else
    __syncthreads();
  if constexpr (c.programmatic) {
    if (threadIdx.x == 0) body.prefetch(start);
    hopper::wait_for_previous();
    hopper::let_next_start();
  }

  unsigned tiles = c.tiles_m(m, n) * c.tiles_n(m, n);
  if constexpr (batched) tiles *= static_cast<unsigned>(shape.batch);
  const unsigned step = c.persistent ? gridDim.x / c.cluster() : tiles;

  if (warpgroup == 0) {
    if constexpr (c.consumers > 1) hopper::fewer_registers<Body::kFewer>();
    const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == 0 && hopper::elect()) body.copy(start, first, tiles, step);
    if (warp == 1) prefetch_for_epilogue<c>(epilogue, shape, start.row, start.column, start.batch);
    if constexpr (c.scaled())
      if (warp == 2) body.copy_scales(start, first, tiles, step);
    __syncwarp();
    if constexpr (c.split_k > 1) {
      hopper::cluster_meet();
      hopper::cluster_sync();
    }
  } else {
    if constexpr (c.consumers > 1) hopper::more_registers<Body::kMore>();
    body.open_turns();
    const int consumer = warpgroup - 1;
    const int first_row = Body::kPingpong ? 0 : consumer * Body::kRowTiles * 64;
    typename Body::Stage stage{0, 0};
    int buffer = 0;
    typename Body::Sums sums;
    const auto place_of_first = [&] { return body.place(first); };
    if constexpr (Body::kPingpong) {
      unsigned tile = first + consumer * step;
      const auto place_of_tile = [&] { return body.place(tile); };
      const int stages = body.slices + Body::kFetchedStages;  // of a tile
      if (consumer == 1) stage.skip(stages);
#pragma unroll 1
      for (; tile < tiles; tile += 2 * step) {
        // Turns: barrier 1 + w opens for consumer w when the other has started its products.
        if (tile >= first + step) hopper::named_sync(1 + consumer, 256);
        body.multiply(sums, stage, first_row, place_of_tile, [&] {
          body.await_fetched(stage);
          if (tile + step < tiles) hopper::named_arrive(2 - consumer, 256);
        });
        body.store(sums, stage, body.place(tile), first_row, buffer);
        stage.skip(stages);
      }
    } else if constexpr (c.split_k > 1) {
      if (body.slices > 0) body.multiply(sums, stage, first_row, place_of_first, [] {});
      hopper::cluster_meet();  // all have multiplied what the sums overwrite
      body.send_sums(sums);
      hopper::cluster_sync();
      body.add_and_store(start);
    } else if constexpr (c.parts > 1) {
      if (body.slices > 0) body.multiply(sums, stage, first_row, place_of_first, [] {});
      float4* const partial = Body::partial_sums(workspace, first);
      body.leave_sums(sums, partial, part);
      if constexpr (!c.later) {
        if (body.is_last(workspace.semaphores + first))
          for (int unit = Body::consumer_warp(); unit < c.units(); unit += Body::kWarps)
            body.template add_unit<c.parts>(partial + unit * 32, c.units(), unit, start);
      }
    } else {
#pragma unroll 1
      for (unsigned tile = first; tile < tiles; tile += step) {
        const auto place_of_tile = [&] { return body.place(tile); };
        body.multiply(sums, stage, first_row, place_of_tile, [] {});
        body.store(sums, stage, body.place(tile), first_row, buffer);
      }
    }
    body.close_turns();
    if constexpr (c.store_tma) {
      if (hopper::elect()) hopper::wait_stores_read<0>();
      __syncwarp();
    }
  }
  // No block ends while others of its cluster may copy to it or arrive at its barriers.
  if constexpr (c.cluster_m * c.cluster_n > 1) hopper::cluster_meet();
}

/// The step of a config whose parts are added `later`: a warp for each unit of each tile. The maps
/// are parameters of all entries; this one copies nothing.
template <GemmTma c, GemmTranspose op, class T, bool batched, class Epilogue>
__device__ __forceinline__ void gemm_tma_add(
    const typename GemmTmaOutputOf<c, T, batched, Epilogue>::Array& out, const hopper::TensorMap& a,
    const hopper::TensorMap& b, const GemmShape<batched>& shape, const Epilogue& epilogue,
    const Workspace& workspace) {
  using Body = GemmTmaBody<c, T, batched, Epilogue, hopper::Lies::along_k, hopper::Lies::along_k>;
  using Output = GemmTmaOutputOf<c, T, batched, Epilogue>;
  const Body body{.rows_map = a,
                  .columns_map = b,
                  .output = Output::of(epilogue, shape, nullptr, out),
                  .shape = shape,
                  .m = shape.m,
                  .n = shape.n,
                  .stages = nullptr,
                  .full = nullptr,
                  .empty = nullptr,
                  .rank = 0,
                  .rank_m = 0,
                  .rank_n = 0,
                  .first_slice = 0,
                  .slices = 0};
  const unsigned warp = blockIdx.x * (c.kAddThreads / 32) + threadIdx.x / 32;
  const unsigned tile = warp / c.units();
  unsigned tiles = c.tiles_m(shape.m, shape.n) * c.tiles_n(shape.m, shape.n);
  if constexpr (batched) tiles *= static_cast<unsigned>(shape.batch);
  if (tile >= tiles) return;
  const int unit = static_cast<int>(warp % c.units());
  body.template add_unit<c.parts>(Body::partial_sums(workspace, tile) + unit * 32, c.units(), unit,
                                  body.place(tile));
}

/// The body as a kernel of its own. P: what the epilogue's arguments are, or Fetched<T>.
template <GemmTma c, GemmTranspose op, class T, bool batched, class Epilogue, class... P>
__global__ void __launch_bounds__(c.threads(), 1)
    gemm_tma(const __grid_constant__ hopper::Argument<c.store_tma, GemmResult<T>*> out,
             const __grid_constant__ hopper::TensorMap a,
             const __grid_constant__ hopper::TensorMap b, GemmShape<batched> shape,
             const __grid_constant__ EntryArgument<c.fetches(), P>... parameters,
             Workspace workspace) {
  gemm_tma_body<c, op, T>(out, a, b, shape, with_arguments<Epilogue>(given(parameters)...),
                          workspace);
}
/// Its step, in blocks of kAddThreads threads.
template <GemmTma c, GemmTranspose op, class T, bool batched, class Epilogue, class... P>
__global__ void __launch_bounds__(c.kAddThreads)
    gemm_tma_step(GemmResult<T>* out, const __grid_constant__ hopper::TensorMap a,
                  const __grid_constant__ hopper::TensorMap b, GemmShape<batched> shape,
                  EntryArgument<false, P>... parameters, Workspace workspace) {
  gemm_tma_add<c, op, T>(out, a, b, shape, with_arguments<Epilogue>(parameters...), workspace);
}

}  // namespace kiln::templates
