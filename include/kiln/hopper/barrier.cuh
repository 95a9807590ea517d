// Part of kiln/hopper.cuh: barriers, clusters, registers, and the order of launches.
#pragma once

namespace kiln::hopper {

/// An address in the block's shared memory as PTX takes it.
__device__ __forceinline__ unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

/// True for one lane of the warp, the same one each time. The whole warp calls it.
__device__ __forceinline__ bool elect() {
  unsigned elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }"
               : "=r"(elected));
  return elected != 0;
}

/// `value`, which is the same in the whole warp, as the compiler can know it to be.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

/// An mbarrier in shared memory. A phase ends when all `arrivals` and all expected bytes are there;
/// the next one begins at once. Phases are told apart by their parity: 0, 1, 0, ...
struct alignas(8) Barrier {
  unsigned long long state;

  /// One thread, once. The block must see publish_barriers() and a barrier before it is used.
  __device__ __forceinline__ void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals)
                 : "memory");
  }
  /// One arrival. What the thread read or wrote before is done for the threads that wait.
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  /// One arrival; the phase also lasts until `bytes` have come by copies that name this barrier.
  __device__ __forceinline__ void arrive_expect(unsigned bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }
  /// One arrival, once all that the thread has begun to copy by copy_word() has come.
  __device__ __forceinline__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(this))
                 : "memory");
  }
  /// One arrival at the barrier that lies at the same place in block `rank` of the cluster. What
  /// the thread has read is done for the threads that wait; what it wrote is visible to this block
  /// alone.
  __device__ __forceinline__ void arrive_at(unsigned rank) {
    asm volatile(
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(shared_address(this)),
        "r"(rank)
        : "memory");
  }
  /// The same, and what the thread wrote is visible to threads that call wait_cluster(). It is
  /// slow, because it is a memory fence.
  __device__ __forceinline__ void publish_at(unsigned rank) {
    asm volatile(
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }" ::"r"(
            shared_address(this)),
        "r"(rank)
        : "memory");
  }
  /// True once the phase of this parity has ended; waits for it for a short time.
  __device__ __forceinline__ bool passed(unsigned parity) {
    unsigned done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(this)), "r"(parity)
        : "memory");
    return done != 0;
  }
  /// The same without waiting.
  __device__ __forceinline__ bool passed_already(unsigned parity) {
    unsigned done;
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(this)), "r"(parity)
        : "memory");
    return done != 0;
  }
  /// Waits for the end of the phase of this parity. A new barrier is in phase 0; waiting for parity
  /// 1 returns at once there.
  __device__ __forceinline__ void wait(unsigned parity) {
    while (!passed(parity)) {
    }
  }
  /// As wait(), and what other blocks of the cluster wrote before publish_at() is visible.
  __device__ __forceinline__ void wait_cluster(unsigned parity) {
    unsigned done;
    do {
      asm volatile(
          "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
          "selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(shared_address(this)), "r"(parity)
          : "memory");
    } while (done == 0);
  }
};

/// Makes barriers that this thread initialised visible to copies and to the cluster's other blocks.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Waits until `threads` threads (a multiple of 32) have come to named barrier `id`, 1 to 15.
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Counts as having come there, without waiting.
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// The block's number in its cluster, and the cluster's number of blocks.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ unsigned cluster_size() {
  unsigned size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
/// A barrier of all threads of the cluster, in halves: each thread calls both.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
/// The same for presence alone: makes no writes visible, and so costs no memory fence.
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
/// What lies at the place of `shared` in block `rank` of the cluster, to be read and written like
/// any memory while that block runs.
template <class T>
__device__ __forceinline__ T* at_block(T* shared, unsigned rank) {
  unsigned long long remote;
  asm volatile("mapa.u64 %0, %1, %2;"
               : "=l"(remote)
               : "l"(reinterpret_cast<unsigned long long>(shared)), "r"(rank));
  return reinterpret_cast<T*>(remote);
}

/// Registers per thread from here on, a multiple of 8. All warps of a warpgroup (four, from a
/// multiple of four) call it; the kernel has __launch_bounds__(threads, 1).
template <int kRegisters>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// In a kernel launched as programmatic: waits until the stream's previous kernels are done and
/// their memory is visible. Before it, a thread may touch no global memory that they write or that
/// it writes itself.
__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
/// Lets the stream's next programmatic kernel start once all blocks have called it or ended.
__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace kiln::hopper
