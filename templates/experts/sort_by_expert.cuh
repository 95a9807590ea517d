// Device half of sort_by_expert.hpp.
#pragma once

#include "kiln/workspace.cuh"
#include "sort_by_expert.hpp"

namespace kiln::templates {

/// A warp's choices, consecutive ones, and its counters, one for each expert.
template <SortByExpert c>
class WarpChoices {
  static constexpr unsigned kPass = 32 * c.items;

 public:
  /// Experts of choices that are 32 apart; -1 for dropped ones, and behind the warp's last.
  struct Pass {
    int expert[c.items];
  };

  __device__ WarpChoices(const int* choices, unsigned all, int groups, int* counters)
      : choices_(choices), groups_(groups), counters_(counters), lane_(threadIdx.x % 32) {
    const unsigned chunk = c.chunk(all), part = chunk / c.warps();
    begin_ = min(blockIdx.x * chunk + threadIdx.x / 32 * part, all);
    end_ = min(begin_ + part, all);
    first_ = load(begin_);
  }

  /// The counters become the numbers of choices of each expert.
  __device__ void count() const {
    for (int g = static_cast<int>(lane_); g < groups_; g += 32) counters_[g] = 0;
    __syncwarp();
    each([&](unsigned, int expert, unsigned same) {
      if (expert >= 0 && rank(same) == 0) counters_[expert] += __popc(same);
      __syncwarp();
    });
  }

  /// Calls row_of(choice, row) for each, where the counters are the rows of each expert's first
  /// one; -1 for dropped ones.
  template <class RowOf>
  __device__ void place(RowOf row_of) const {
    each([&](unsigned choice, int expert, unsigned same) {
      const int row = expert >= 0 ? counters_[expert] + rank(same) : -1;
      __syncwarp();  // no lane counts on before all have read
      if (expert >= 0 && rank(same) == 0) counters_[expert] += __popc(same);
      __syncwarp();
      if (choice < end_) row_of(choice, row);
    });
  }

 private:
  __device__ Pass load(unsigned from) const {
    Pass pass;
#pragma unroll
    for (int i = 0; i < c.items; ++i) {
      const unsigned choice = from + i * 32 + lane_;
      const int expert = choice < end_ ? choices_[choice] : -1;
      pass.expert[i] = expert >= 0 && expert < groups_ ? expert : -1;
    }
    return pass;
  }
  /// This lane's number among those of the same expert.
  __device__ int rank(unsigned same) const { return __popc(same & ((1u << lane_) - 1)); }

  /// Calls f(choice, expert, lanes of the same expert) for each, by all lanes in step.
  template <class F>
  __device__ void each(F f) const {
    const auto walk = [&](const Pass& pass, unsigned from) {
#pragma unroll
      for (int i = 0; i < c.items; ++i) {
        if (from + i * 32 >= end_) return;
        f(from + i * 32 + lane_, pass.expert[i], __match_any_sync(0xffffffffu, pass.expert[i]));
      }
    };
    walk(first_, begin_);
    for (unsigned from = begin_ + kPass; from < end_; from += kPass) walk(load(from), from);
  }

  const int* choices_;
  int groups_;
  int* counters_;
  unsigned lane_, begin_, end_;
  Pass first_;  // in registers for the second walk
};

/// The sum of `mine` over the block's threads up to this one, and over all.
struct Sums {
  int up_to_here, all;
};
template <SortByExpert c>
__device__ Sums sums_of_block(int mine) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, mine, step);
    if (lane >= step) mine += before;
  }
  if constexpr (c.warps() == 1) {
    return {mine, __shfl_sync(0xffffffffu, mine, 31)};
  } else {
    __shared__ int of_warp[c.warps()];
    __syncthreads();  // the last call's sums have been read
    if (lane == 31) of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    int all = 0;
#pragma unroll
    for (unsigned w = 0; w < c.warps(); ++w) {
      if (w < threadIdx.x / 32) mine += of_warp[w];
      all += of_warp[w];
    }
    return {mine, all};
  }
}

/// Choices of an expert: in front of this block's, and all.
struct Counted {
  int before, all;
};

/// Each warp's counts become the rows of its first choice of each expert. One thread for each
/// expert g calls counted_of(g), and then end_of(g, end). Returns the last end.
template <SortByExpert c, class CountedOf, class EndOf>
__device__ int rows_of_counts(int* counters, int groups, CountedOf counted_of, EndOf end_of) {
  int last = 0;
  for (int first = 0; first < groups; first += c.block) {
    const int g = first + static_cast<int>(threadIdx.x);
    const Counted counted = g < groups ? counted_of(g) : Counted{0, 0};
    const Sums sums = sums_of_block<c>(counted.all);
    if (g < groups) {
      const int end = last + sums.up_to_here;
      end_of(g, end);
      int row = end - counted.all + counted.before;
#pragma unroll 4
      for (int w = 0; w < c.warps(); ++w) {
        const int count = counters[w * groups + g];
        counters[w * groups + g] = row;
        row += count;
      }
    }
    last += sums.all;
  }
  return last;
}

/// What the block's warps have counted of an expert.
template <SortByExpert c>
__device__ int of_all_warps(const int* counters, int groups, int g) {
  int all = 0;
#pragma unroll 4
  for (int w = 0; w < c.warps(); ++w) all += counters[w * groups + g];
  return all;
}

template <SortByExpert c>
__device__ int* expert_counters() {
  static_assert((c.block & (c.block - 1)) == 0 && c.block >= 32 && c.block <= 1024,
                "block: a power of two from 32 to 1024 threads");
  static_assert(c.items >= 1, "items: at least 1 choice per thread");
  static_assert(c.blocks >= 1, "blocks: at least 1");
  extern __shared__ int sort_by_expert_counters[];
  return sort_by_expert_counters;
}

/// Counts and sorts this block's chunk; counted_of and end_of as rows_of_counts has them.
template <SortByExpert c, class CountedOf, class EndOf>
__device__ void sort_chunk(int* tokens, int* places, const int* choices, int count, int top,
                           int groups, CountedOf counted_of, EndOf end_of) {
  int* const counters = expert_counters<c>();
  const unsigned all = SortByExpertProblem{count, top, groups}.choices();
  const WarpChoices<c> mine(choices, all, groups,
                            counters + static_cast<int>(threadIdx.x / 32) * groups);
  mine.count();
  __syncthreads();
  const int last = rows_of_counts<c>(counters, groups, counted_of, end_of);
  __syncthreads();
  mine.place([&](unsigned choice, int row) {
    places[choice] = row;
    if (row >= 0) tokens[row] = static_cast<int>(choice / static_cast<unsigned>(top));
  });
  for (unsigned row = last + blockIdx.x * c.block + threadIdx.x; row < all;
       row += gridDim.x * c.block)
    tokens[row] = -1;
}

template <SortByExpert c>
  requires(!c.split())
__global__ void __launch_bounds__(c.threads())
    sort_by_expert(int* ends, int* tokens, int* places, const int* choices, int count, int top,
                   int groups) {
  sort_chunk<c>(
      tokens, places, choices, count, top, groups,
      [&](int g) { return Counted{0, of_all_warps<c>(expert_counters<c>(), groups, g)}; },
      [&](int g, int end) { ends[g] = end; });
}

/// Leaves the counts of each block in the workspace: [blocks][groups].
template <SortByExpert c>
  requires(c.split())
__global__ void __launch_bounds__(c.threads())
    sort_by_expert(int*, int*, int*, const int* choices, int count, int top, int groups,
                   Workspace workspace) {
  int* const counters = expert_counters<c>();
  const WarpChoices<c> mine(choices, SortByExpertProblem{count, top, groups}.choices(), groups,
                            counters + static_cast<int>(threadIdx.x / 32) * groups);
  mine.count();
  __syncthreads();
  int* const counts = static_cast<int*>(workspace.scratch) + blockIdx.x * groups;
  for (int g = static_cast<int>(threadIdx.x); g < groups; g += c.block)
    counts[g] = of_all_warps<c>(counters, groups, g);
}
/// Each block adds up the counts of all.
template <SortByExpert c>
__global__ void __launch_bounds__(c.threads())
    sort_by_expert_place(int* ends, int* tokens, int* places, const int* choices, int count,
                         int top, int groups, Workspace workspace) {
  const int* const counts = static_cast<const int*>(workspace.scratch);
  sort_chunk<c>(
      tokens, places, choices, count, top, groups,
      [&](int g) {
        Counted counted{0, 0};
#pragma unroll 8
        for (unsigned b = 0; b < gridDim.x; ++b) {
          const int of_block = counts[b * groups + g];
          counted.all += of_block;
          if (b < blockIdx.x) counted.before += of_block;
        }
        return counted;
      },
      [&](int g, int end) {
        if (blockIdx.x == 0) ends[g] = end;
      });
}

}  // namespace kiln::templates
