// Cooperative groups: the block, tiles of up to 32 threads, the threads that are converged. Groups
// of a warp are masks of lanes, so their members may wait while other lanes are elsewhere.
#pragma once

#include "kiln_cluster.h"

namespace cooperative_groups {

namespace kiln_groups {

template <class>
inline constexpr bool never = false;

__kiln_inline unsigned block_size() {
  return __kiln_block_dim(0) * __kiln_block_dim(1) * __kiln_block_dim(2);
}
__kiln_inline unsigned lanes_before() { return (1u << __kiln_lane()) - 1u; }

// A value from another lane, word by word if it has more than 8 bytes.
template <class T, class Shuffle>
__kiln_inline T shuffled(T value, Shuffle shuffle) {
  static_assert(sizeof(T) <= 32 && __is_trivially_copyable(T),
                "a shuffled value has at most 32 bytes and is trivially copyable");
  if constexpr (sizeof(T) <= 8) {
    return shuffle(value);
  } else {
    unsigned words[(sizeof(T) + 3) / 4] = {};
    __builtin_memcpy(words, &value, sizeof(T));
    for (unsigned& word : words) word = shuffle(word);
    __builtin_memcpy(&value, words, sizeof(T));
    return value;
  }
}

}  // namespace kiln_groups

// What every group of a block converts to. Without a mask of lanes it is the block.
class thread_group {
 public:
  unsigned long long num_threads() const {
    return mask_ ? (unsigned)__popc(mask_) : kiln_groups::block_size();
  }
  unsigned long long size() const { return num_threads(); }
  unsigned long long thread_rank() const {
    return mask_ ? (unsigned)__popc(mask_ & kiln_groups::lanes_before()) : __kiln_linear_thread();
  }
  void sync() const { mask_ ? __syncwarp(mask_) : __syncthreads(); }

 protected:
  constexpr explicit thread_group(unsigned mask) : mask_(mask) {}
  friend thread_group tiled_partition(const thread_group&, unsigned);

  unsigned mask_;
};

class thread_block : public thread_group {
 public:
  struct arrival_token {};

  static void sync() { __syncthreads(); }
  static arrival_token barrier_arrive() { return {}; }
  static void barrier_wait(arrival_token&&) { __syncthreads(); }
  static unsigned num_threads() { return kiln_groups::block_size(); }
  static unsigned size() { return num_threads(); }
  static unsigned thread_rank() { return __kiln_linear_thread(); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 dim_threads() { return blockDim; }
  static dim3 group_dim() { return blockDim; }

 private:
  constexpr thread_block() : thread_group(0) {}
  friend thread_block this_thread_block();
};
__forceinline__ thread_block this_thread_block() { return {}; }

class cluster_group {
 public:
  struct arrival_token {};

  static arrival_token barrier_arrive() {
    __kiln_serve(__kiln_cluster_arrive);
    return {};
  }
  static void barrier_wait() { __kiln_cluster_wait(); }
  static void barrier_wait(arrival_token&&) { __kiln_cluster_wait(); }
  static void sync() {
    barrier_arrive();
    barrier_wait();
  }
  static dim3 block_index() {
    return dim3(__kiln_cluster_index(0), __kiln_cluster_index(1), __kiln_cluster_index(2));
  }
  static dim3 dim_blocks() {
    return dim3(__kiln_cluster_dim(0), __kiln_cluster_dim(1), __kiln_cluster_dim(2));
  }
  static unsigned block_rank() { return __kiln_cluster_rank(); }
  static unsigned num_blocks() { return __kiln_cluster_size(); }
  static unsigned num_threads() { return num_blocks() * kiln_groups::block_size(); }
  static unsigned size() { return num_threads(); }
  static unsigned thread_rank() {
    return block_rank() * kiln_groups::block_size() + __kiln_linear_thread();
  }
  template <class T>
  static T* map_shared_rank(T* shared, unsigned rank) {
    return __kiln_at_block(shared, rank);
  }
  static unsigned query_shared_rank(const void* shared) {
    return (unsigned)(__kiln_serve(__kiln_shared_address, shared) >> 24);
  }
};
__forceinline__ cluster_group this_cluster() { return {}; }

class grid_group {
 public:
  static dim3 block_index() { return blockIdx; }
  static dim3 dim_blocks() { return gridDim; }
  static dim3 group_dim() { return gridDim; }
  static unsigned long long num_blocks() {
    return (unsigned long long)__kiln_grid_dim(0) * __kiln_grid_dim(1) * __kiln_grid_dim(2);
  }
  static unsigned long long block_rank() {
    const unsigned long long row =
        (unsigned long long)__kiln_block_index(2) * __kiln_grid_dim(1) + __kiln_block_index(1);
    return row * __kiln_grid_dim(0) + __kiln_block_index(0);
  }
  static unsigned long long num_threads() { return num_blocks() * kiln_groups::block_size(); }
  static unsigned long long size() { return num_threads(); }
  static unsigned long long thread_rank() {
    return block_rank() * kiln_groups::block_size() + __kiln_linear_thread();
  }
  static bool is_valid() { return false; }
  template <class T = void>
  static void sync() {
    static_assert(kiln_groups::never<T>,
                  "the host target has no grid_group::sync(): its blocks do not wait for each "
                  "other. Make two kernels of it, launched one after the other.");
  }
};
__forceinline__ grid_group this_grid() { return {}; }

namespace kiln_groups {

template <unsigned threads>
class tile : public thread_group {
  static_assert(threads <= 32 && threads != 0 && (threads & (threads - 1)) == 0,
                "the host target has tiles of 1, 2, 4, 8, 16 or 32 threads");

 public:
  static unsigned first_lane() { return __kiln_lane() & ~(threads - 1); }
  static unsigned mask() { return (~0u >> (32 - threads)) << first_lane(); }

  static constexpr unsigned num_threads() { return threads; }
  static constexpr unsigned size() { return threads; }
  static unsigned thread_rank() { return __kiln_lane() & (threads - 1); }
  static void sync() { __syncwarp(mask()); }

  template <class T>
  T shfl(T value, int source) const {
    return shuffled(value, [=](auto v) { return __shfl_sync(mask(), v, source, threads); });
  }
  template <class T>
  T shfl_up(T value, unsigned delta) const {
    return shuffled(value, [=](auto v) { return __shfl_up_sync(mask(), v, delta, threads); });
  }
  template <class T>
  T shfl_down(T value, unsigned delta) const {
    return shuffled(value, [=](auto v) { return __shfl_down_sync(mask(), v, delta, threads); });
  }
  template <class T>
  T shfl_xor(T value, unsigned lanes) const {
    return shuffled(value, [=](auto v) { return __shfl_xor_sync(mask(), v, (int)lanes, threads); });
  }
  int any(int predicate) const { return __any_sync(mask(), predicate); }
  int all(int predicate) const { return __all_sync(mask(), predicate); }
  unsigned ballot(int predicate) const { return __ballot_sync(mask(), predicate) >> first_lane(); }
  template <class T>
  unsigned match_any(T value) const {
    return __match_any_sync(mask(), value) >> first_lane();
  }
  template <class T>
  unsigned match_all(T value, int& predicate) const {
    return __match_all_sync(mask(), value, &predicate) >> first_lane();
  }

 protected:
  tile() : thread_group(mask()) {}
};

}  // namespace kiln_groups

template <unsigned threads, class Parent = void>
class thread_block_tile : public kiln_groups::tile<threads> {
 public:
  explicit thread_block_tile(const Parent&) {}
  static unsigned meta_group_rank() { return Parent::thread_rank() / threads; }
  static unsigned meta_group_size() { return (Parent::size() + threads - 1) / threads; }
};
template <unsigned threads>
class thread_block_tile<threads, void> : public kiln_groups::tile<threads> {
 public:
  template <class Parent>
  thread_block_tile(const thread_block_tile<threads, Parent>& other)
      : rank_(other.meta_group_rank()), groups_(other.meta_group_size()) {}
  unsigned meta_group_rank() const { return rank_; }
  unsigned meta_group_size() const { return groups_; }

 private:
  unsigned rank_, groups_;
};

template <unsigned threads>
thread_block_tile<threads, thread_block> tiled_partition(const thread_block& block) {
  return thread_block_tile<threads, thread_block>(block);
}
template <unsigned threads, unsigned parent, class Grandparent>
thread_block_tile<threads, thread_block_tile<parent, Grandparent>> tiled_partition(
    const thread_block_tile<parent, Grandparent>& tile) {
  static_assert(threads < parent, "a tile is smaller than the tile that it is part of");
  return thread_block_tile<threads, thread_block_tile<parent, Grandparent>>(tile);
}
inline thread_block_tile<1> this_thread() {
  const auto tile = tiled_partition<1>(this_thread_block());
  return thread_block_tile<1, thread_block_tile<1, thread_block>>(tile);
}

// Lanes that are in one place. A member's rank is its position among them.
class coalesced_group : public thread_group {
 public:
  unsigned num_threads() const { return (unsigned)__popc(mask_); }
  unsigned size() const { return num_threads(); }
  unsigned thread_rank() const { return (unsigned)__popc(mask_ & kiln_groups::lanes_before()); }
  unsigned meta_group_rank() const { return rank_; }
  unsigned meta_group_size() const { return groups_; }
  void sync() const { __syncwarp(mask_); }

  template <class T>
  T shfl(T value, int source) const {
    return from_lane(value, num_threads() == 32 ? (unsigned)source : __fns(mask_, 0, source + 1));
  }
  template <class T>
  T shfl_up(T value, int delta) const {
    return from_lane(value, __fns(mask_, __kiln_lane(), -(delta + 1)));
  }
  template <class T>
  T shfl_down(T value, unsigned delta) const {
    return from_lane(value, __fns(mask_, __kiln_lane(), (int)delta + 1));
  }
  int any(int predicate) const { return __any_sync(mask_, predicate); }
  int all(int predicate) const { return __all_sync(mask_, predicate); }
  unsigned ballot(int predicate) const { return by_rank(__ballot_sync(mask_, predicate)); }
  template <class T>
  unsigned match_any(T value) const {
    return by_rank(__match_any_sync(mask_, value));
  }
  template <class T>
  unsigned match_all(T value, int& predicate) const {
    return by_rank(__match_all_sync(mask_, value, &predicate));
  }

 private:
  explicit coalesced_group(unsigned mask, unsigned rank = 0, unsigned groups = 1)
      : thread_group(mask), rank_(rank), groups_(groups) {}
  friend coalesced_group coalesced_threads();
  friend coalesced_group tiled_partition(const coalesced_group&, unsigned);
  friend struct coalesced_parts;

  // Its own value where there is no such lane.
  template <class T>
  T from_lane(T value, unsigned lane) const {
    const int source = (int)(lane < 32 ? lane : __kiln_lane());
    return kiln_groups::shuffled(value,
                                 [=, this](auto v) { return __shfl_sync(mask_, v, source); });
  }
  unsigned by_rank(unsigned lanes) const {
    unsigned packed = 0, rank = 0;
    __KILN_FOR_LANES(lane, mask_) packed |= (lanes >> lane & 1u) << rank++;
    return packed;
  }

  unsigned rank_, groups_;
};
inline coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

// Makes the groups that others are divided into.
struct coalesced_parts {
  static unsigned mask_of(const coalesced_group& group) { return group.mask_; }
  template <unsigned threads>
  static unsigned mask_of(const kiln_groups::tile<threads>& tile) {
    return tile.mask();
  }
  template <class Group>
  static coalesced_group by_predicate(const Group& group, bool predicate) {
    const unsigned all = mask_of(group), set = __ballot_sync(all, predicate);
    if (set == all || set == 0) return coalesced_group(all);
    return coalesced_group(predicate ? set : all & ~set, predicate, 2);
  }
  template <class Group, class Label>
  static coalesced_group by_label(const Group& group, Label label) {
    const unsigned all = mask_of(group), same = __match_any_sync(all, label);
    const int leader = __builtin_ctz(same);
    const unsigned leaders = __ballot_sync(all, (int)__kiln_lane() == leader);
    return coalesced_group(same, (unsigned)__popc(leaders & ((1u << leader) - 1u)),
                           (unsigned)__popc(leaders));
  }
};
template <class Group>
coalesced_group binary_partition(const Group& group, bool predicate) {
  return coalesced_parts::by_predicate(group, predicate);
}
template <class Group, class Label>
coalesced_group labeled_partition(const Group& group, Label label) {
  return coalesced_parts::by_label(group, label);
}
template <class Group>
coalesced_group labeled_partition(const Group& group, bool label) {
  return coalesced_parts::by_predicate(group, label);
}

// Tiles whose size is known when the kernel runs: a power of two up to 32.
inline void require_tile_size(unsigned threads) {
  if (threads == 0 || threads > 32 || (threads & (threads - 1)))
    __kiln_fault("cooperative_groups::tiled_partition: the size is not 1, 2, 4, 8, 16 or 32");
}
inline coalesced_group tiled_partition(const coalesced_group& group, unsigned threads) {
  require_tile_size(threads);
  if (group.size() <= threads) return group;
  const unsigned first = group.thread_rank() & ~(threads - 1);
  unsigned mask = 0, rank = 0;
  __KILN_FOR_LANES(lane, group.mask_) {
    mask |= (rank >= first && rank < first + threads ? 1u : 0u) << lane;
    ++rank;
  }
  return coalesced_group(mask, first / threads, (group.size() + threads - 1) / threads);
}
inline thread_group tiled_partition(const thread_group& group, unsigned threads) {
  require_tile_size(threads);
  const unsigned tile = (~0u >> (32 - threads)) << (__kiln_lane() & ~(threads - 1));
  return thread_group(group.mask_ ? group.mask_ & tile : tile);
}

template <class Group>
void sync(const Group& group) {
  group.sync();
}
template <class Group>
auto thread_rank(const Group& group) {
  return group.thread_rank();
}
template <class Group>
auto group_size(const Group& group) {
  return group.num_threads();
}

}  // namespace cooperative_groups
