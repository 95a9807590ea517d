// How blocks and warps come by their rows: each its own, in turns with others, or ahead of time.
#pragma once

#include "../device/stage_ring.cuh"
#include "row_kernel.cuh"

namespace kiln::templates {

template <RowConfig c, int kVector, int kKept, bool kWhole, class T, class F, class... W>
__device__ void walk_rows(const T* x, int rows, int columns, F f, const W*... w) {
  using Read = Row<c, kVector, kKept, T, kWhole>;
  if constexpr (c.persistent && kWhole) {
    const auto read = [&](long long r) {
      return Read(x + (r < rows ? r * columns : 0), r < rows ? columns : 0);
    };
    const auto walk = [&](Read row, auto... beside) {
      for (long long r = first_row<c>(); r < rows; r += row_step<c>()) {
        const Read next = read(r + row_step<c>());
        f(row, r, beside...);
        row = next;
      }
    };
    const Read row = read(first_row<c>());
    walk(row, Beside<kVector, kKept, W, true>(w, row)...);
  } else {
    each_row<c>(rows, [&](long long r) {
      Read row(x + r * columns, columns);
      const auto read = [&](auto... beside) { f(row, r, beside...); };
      read(Beside<kVector, kKept, W, kWhole>(w, row)...);
    });
  }
}

/// Where a thread's accesses of an aligned row are.
template <RowConfig c, int kVector>
struct WholeRow {
  unsigned columns;

  __device__ unsigned place(int i) const {
    return (thread_of_row<c>() + static_cast<unsigned>(i) * c.threads_per_row()) * kVector;
  }
  __device__ bool keeps(int i) const { return place(i) < columns; }
};

/// Rows that are copied to a ring of stages, where c.stages - 1 of them are under way while one is
/// looked at. `f` combines something of the row over its threads: then all have used the stage.
/// Dynamic shared memory: c.shared_bytes(columns, sizeof(T)).
template <RowConfig c, class T, class F, class... W>
__device__ void walk_staged_rows(const T* x, int rows, int columns, F f, const W*... w) {
  constexpr bool kWarps = c.rows_per_block > 1;
  __shared__ hopper::Barrier landed[c.rows_per_block][c.stages];
  extern __shared__ __align__(128) unsigned char staged_rows[];
  const unsigned team = kWarps ? threadIdx.x / 32 : 0;
  const auto bytes = static_cast<unsigned>(columns * sizeof(T));
  StageRing<c.stages> ring(landed[team], staged_rows + team * c.stages * bytes, bytes);
  const bool leads = thread_of_row<c>() == 0;
  const auto meet = [] {
    if constexpr (kWarps)
      __syncwarp();
    else
      __syncthreads();
  };
  const auto fill = [&](int stage, long long r) {
    if (r < rows)
      ring.fill(stage, bytes, [&](void* to, hopper::Barrier& barrier) {
        hopper::load_bytes(to, x + r * columns, bytes, barrier);
      });
  };
  if (leads) {
    ring.init();
#pragma unroll
    for (int s = 0; s < c.stages; ++s) fill(s, first_row<c>() + s * row_step<c>());
  }
  meet();
  const auto walk = [&](auto... beside) {
    for (long long r = first_row<c>(); r < rows; r += row_step<c>()) {
      Row<c, c.vector, c.kept, T, true> row(reinterpret_cast<const T*>(ring.wait()), columns);
      f(row, r, beside...);
      if (leads) fill(ring.stage(), r + c.stages * row_step<c>());
      ring.next();
    }
  };
  walk(Beside<c.vector, c.kept, W, true>(w,
                                         WholeRow<c, c.vector>{static_cast<unsigned>(columns)})...);
}

/// Calls `f(row, r, what is beside it...)` for each row of x that is this thread's: of the config's
/// accesses if `other`, which has one element per element of x, is aligned alike; else element by
/// element. `w...` are arrays as long as a row.
template <RowConfig c, class T, class U, class F, class... W>
__device__ void with_rows(const T* x, const U* other, int rows, int columns, F f, const W*... w) {
  const bool whole = columns <= c.kept * c.step() && columns % c.vector == 0 &&
                     (misalignment<c.vector>(x) | misalignment<c.vector>(other) |
                      (misalignment<c.vector>(w) | ... | 0u)) == 0;
  if (whole) {
    if constexpr (c.stages > 0)
      walk_staged_rows<c>(x, rows, columns, f, w...);
    else
      walk_rows<c, c.vector, c.kept, true>(x, rows, columns, f, w...);
    return;
  }
  if (aligned_alike<c.vector>(x, other))
    walk_rows<c, c.vector, c.kept, false>(x, rows, columns, f, w...);
  else
    walk_rows<c, 1, 0, false>(x, rows, columns, f, w...);
}

}  // namespace kiln::templates
