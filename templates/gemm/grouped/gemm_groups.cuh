// Part of gemm_grouped.cuh: which tile of which group is whose.
#pragma once

#include "gemm_grouped.hpp"

namespace kiln::templates {

/// Rows of C in the group's batch.
struct GroupRows {
  int group, begin, end;
  __device__ __forceinline__ int count() const { return end - begin; }
};

/// The tiles of all groups, group by group, as a warp walks over them: its lanes look at 32 groups
/// at a time. All lanes call each function. `c.tiles_m` and `c.tiles_n` count a group's tiles.
template <auto c, GroupLayout layout>
class GroupTiles {
 public:
  /// `sizes`: ends or counts; `row_alignment`: of groups with padding.
  __device__ __forceinline__ GroupTiles(const int* sizes, const GemmShape<true>& shape,
                                        int row_alignment = 1)
      : sizes_(sizes), shape_(shape), row_alignment_(row_alignment) {
    look();
  }

  /// Back to the first tile.
  __device__ __forceinline__ void restart() {
    first_ = rows_before_ = 0;
    before_ = 0;
    look();
  }
  /// Whether there is a tile of this number, which is not less than at the last call.
  __device__ __forceinline__ bool reach(unsigned tile) {
    while (tile - before_ >= seen_) {
      if (first_ + 32 >= shape_.batch) return false;
      first_ += 32;
      before_ += seen_;
      look();
    }
    return true;
  }
  /// How many there are. The first ones cannot be reached any more, before a restart().
  __device__ __forceinline__ unsigned count() {
    while (first_ + 32 < shape_.batch) {
      first_ += 32;
      before_ += seen_;
      look();
    }
    return before_ + seen_;
  }
  /// Where a tile begins in the product, and the end of its group's rows. @pre reach(tile)
  template <class Body>
  __device__ __forceinline__ auto place(const Body& body, unsigned tile, int& end) const {
    unsigned in_group;
    const GroupRows rows = at(tile, in_group);
    auto place = body.place(in_group, rows.count(), rows.group);
    (c.swap ? place.column : place.row) += rows.begin;
    end = rows.end;
    return place;
  }
  /// Whose tile it is, and its number among the group's. @pre reach(tile)
  __device__ __forceinline__ GroupRows at(unsigned tile, unsigned& in_group) const {
    const unsigned place = tile - before_;
    const int lane = __ffs(static_cast<int>(__ballot_sync(kAll, through_ > place))) - 1;
    const unsigned earlier = __shfl_sync(kAll, through_, lane > 0 ? lane - 1 : 0);
    in_group = lane > 0 ? place - earlier : place;
    return {first_ + lane, __shfl_sync(kAll, begin_, lane), __shfl_sync(kAll, end_, lane)};
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  __device__ __forceinline__ void look() {
    const int lane = static_cast<int>(threadIdx.x) % 32, group = first_ + lane;
    const int given = group < shape_.batch ? sizes_[group] : 0;
    if constexpr (layout == GroupLayout::masked) {
      end_ = group_end(given, 0, shape_.m);
    } else {
      end_ = group_end(given, rows_before_, shape_.m);
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int earlier = __shfl_up_sync(kAll, end_, static_cast<unsigned>(distance));
        if (lane >= distance) end_ = max(end_, earlier);
      }
      const int earlier = __shfl_up_sync(kAll, end_, 1u);
      begin_ = lane > 0 ? earlier : rows_before_;
      rows_before_ = __shfl_sync(kAll, end_, 31);
      if constexpr (layout == GroupLayout::padded) {
        begin_ = group_begin(begin_, row_alignment_, shape_.m);
        end_ = max(end_, begin_);
      }
    }
    const int rows = end_ - begin_;
    through_ = c.tiles_m(rows, shape_.n) * c.tiles_n(rows, shape_.n);
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const unsigned earlier = __shfl_up_sync(kAll, through_, static_cast<unsigned>(distance));
      if (lane >= distance) through_ += earlier;
    }
    seen_ = __shfl_sync(kAll, through_, 31);
  }

  const int* sizes_;
  const GemmShape<true>& shape_;
  const int row_alignment_;
  int first_ = 0, rows_before_ = 0;  // the first group that is looked at, and what lies before it
  unsigned before_ = 0, seen_ = 0;   // tiles before these groups, and theirs
  int begin_ = 0, end_ = 0;          // the lane's group's rows
  unsigned through_ = 0;             // tiles of these groups, up to the lane's
};

/// The same for one block, whose threads do not work together: false where there is no such tile.
template <Gemm c, GroupLayout layout>
__device__ __forceinline__ bool group_of(unsigned& tile, const int* sizes,
                                         const GemmShape<true>& shape, int row_alignment,
                                         GroupRows& rows) {
  rows.end = 0;
  for (rows.group = 0; rows.group < shape.batch; ++rows.group) {
    rows.begin = layout == GroupLayout::masked ? 0 : rows.end;
    if constexpr (layout == GroupLayout::padded)
      rows.begin = group_begin(rows.end, row_alignment, shape.m);
    rows.end = group_end(sizes[rows.group], rows.begin, shape.m);
    const unsigned tiles = c.tiles_m(rows.count()) * c.tiles_n(shape.n);
    if (tile < tiles) return true;
    tile -= tiles;
  }
  return false;
}

}  // namespace kiln::templates
