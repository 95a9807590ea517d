// Stages in shared memory that bulk copies fill ahead of the threads that read them.
//
//   StageRing<4> ring(barriers, memory, bytes);
//   if (leads) ring.init();
//   // the team meets; then the leader fills each stage once
//   for (;;) {
//     const unsigned char* data = ring.wait();
//     // the team reads, computes, and meets
//     if (leads) ring.fill(ring.stage(), bytes, copy);
//     ring.next();
//   }
#pragma once

#include "kiln/hopper.cuh"

namespace kiln::templates {

/// `kStages` stages, read by a team: a warp, or all threads of a block. Each thread of the team has
/// a ring of its own, and all of them call wait() and next() alike; one thread leads. sm_90.
template <int kStages>
class StageRing {
 public:
  /// `landed`: kStages barriers of the team's own. `memory`: kStages stages of `bytes` bytes, a
  /// multiple of 16 as the address is. Both are shared memory.
  __device__ StageRing(hopper::Barrier* landed, unsigned char* memory, unsigned bytes)
      : landed_(landed), memory_(memory), bytes_(bytes) {}

  /// The leader, once, before any other call. The team meets before it waits.
  __device__ void init() {
#pragma unroll
    for (int s = 0; s < kStages; ++s) landed_[s].init(1);
    hopper::publish_barriers();
  }
  /// The leader: begins to fill a stage that was never filled, or whose values all threads of the
  /// team have used before they met. To have read them is not enough: a load may still wait for its
  /// turn when its thread comes to a barrier, and the copy does not. `copy(memory, barrier)` starts
  /// copies of `bytes` bytes in all. What the leader wrote to shared memory before is visible to
  /// the threads that have waited for the stage.
  template <class Copy>
  __device__ void fill(int stage, unsigned bytes, Copy copy) {
    landed_[stage].arrive_expect(bytes);
    copy(memory_ + static_cast<unsigned>(stage) * bytes_, landed_[stage]);
  }
  /// The current stage, as soon as its copies have come.
  __device__ unsigned char* wait() {
    landed_[stage_].wait(phase_);
    return memory_ + static_cast<unsigned>(stage_) * bytes_;
  }
  __device__ int stage() const { return stage_; }
  __device__ void next() {
    if (++stage_ < kStages) return;
    stage_ = 0;
    phase_ ^= 1;
  }

 private:
  hopper::Barrier* landed_;
  unsigned char* memory_;
  unsigned bytes_;
  int stage_ = 0;
  unsigned phase_ = 0;
};

}  // namespace kiln::templates
