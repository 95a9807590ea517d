// Clusters: ranks, the cluster's barrier in one piece and in two, each other's shared memory, and
// what kernels do wrong with them.
#include <numeric>

#include "hopper_test.hpp"

using namespace host_test;

namespace {

constexpr const char* kRing = R"(
  #include <kiln/hopper.cuh>
  namespace hopper = kiln::hopper;
  __global__ void ring(int* out, int rounds) {
    __shared__ int cell[64];
    const int t = threadIdx.x, rank = hopper::cluster_rank(), size = hopper::cluster_size();
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int value = block * 64 + t;
    for (int r = 0; r < rounds; ++r) {
      cell[t] = value;
      hopper::cluster_sync();
      value = *hopper::at_block(&cell[63 - t], (rank + 1) % size) + 1;
      hopper::cluster_sync();
    }
    out[block * 64 + t] = value;
  })";

// The block that block `block` (linear) of a grid reads from: the next one of its cluster.
unsigned next_block(unsigned block, Extent grid, Extent cluster) {
  const unsigned x = block % grid.x, y = block / grid.x % grid.y, z = block / grid.x / grid.y;
  const unsigned rank = (z % cluster.z * cluster.y + y % cluster.y) * cluster.x + x % cluster.x;
  const unsigned next = (rank + 1) % static_cast<unsigned>(cluster.count());
  const unsigned nx = x / cluster.x * cluster.x + next % cluster.x;
  const unsigned ny = y / cluster.y * cluster.y + next / cluster.x % cluster.y;
  const unsigned nz = z / cluster.z * cluster.z + next / cluster.x / cluster.y;
  return (nz * grid.y + ny) * grid.x + nx;
}

}  // namespace

TEST_CASE("blocks of a cluster read each other's shared memory in turn", "[host][cluster]") {
  Kernel ring(kRing, "ring");
  for (const auto& [cluster, grid] : {std::pair{Extent{1}, Extent{3}},
                                      {Extent{2}, Extent{6}},
                                      {Extent{4}, Extent{4}},
                                      {Extent{8}, Extent{16}},
                                      {Extent{16}, Extent{16}},
                                      {Extent{2, 2}, Extent{4, 6}},
                                      {Extent{1, 3, 2}, Extent{5, 3, 4}}}) {
    CAPTURE(cluster.x, cluster.y, cluster.z);
    const auto blocks = static_cast<unsigned>(grid.count());
    std::vector<int> out(blocks * 64), expected(out.size());
    std::iota(expected.begin(), expected.end(), 0);
    const int rounds = 5;
    for (int r = 0; r < rounds; ++r) {
      const std::vector<int> before = expected;
      for (unsigned b = 0; b < blocks; ++b)
        for (unsigned t = 0; t < 64; ++t)
          expected[b * 64 + t] = before[next_block(b, grid, cluster) * 64 + 63 - t] + 1;
    }
    ring.in_clusters(cluster, grid, {64}, 0, out.data(), rounds);
    CHECK(out == expected);
  }
}

TEST_CASE("a sum over a cluster: atomics and stores in block 0's shared memory",
          "[host][cluster]") {
  Kernel sum(R"(
    #include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    __global__ void sum(int* out, const int* in, int n) {
      extern __shared__ int s[];  // the cluster's sum, then one cell per block
      const auto cluster = cg::this_cluster();
      if (threadIdx.x == 0) s[0] = 0;
      cluster.sync();
      int mine = 0;
      const int first = blockIdx.x / cluster.num_blocks() * n;
      for (int i = cluster.thread_rank(); i < n; i += cluster.num_threads()) mine += in[first + i];
      atomicAdd(cluster.map_shared_rank(s, 0), mine);
      if (threadIdx.x == 0) cluster.map_shared_rank(s, 0)[1 + cluster.block_rank()] = blockDim.x;
      auto token = cluster.barrier_arrive();
      mine = 0;  // work between the halves
      cluster.barrier_wait(static_cast<decltype(token)&&>(token));
      if (cluster.thread_rank() == 0) {
        int threads = 0;
        for (int i = 0; i < cluster.dim_blocks().x; ++i) threads += s[1 + i];
        out[blockIdx.x / cluster.num_blocks()] =
            s[0] * 10000 + threads + (cluster.query_shared_rank(s) == 0 ? 0 : 5000);
      }
    })",
             "sum");
  for (unsigned size : {1u, 2u, 5u, 8u}) {
    CAPTURE(size);
    const int n = 1000;
    std::vector<int> in(3 * n), out(3);
    std::iota(in.begin(), in.end(), -1400);
    sum.in_clusters({size}, {3 * size}, {96}, 4 * (1 + size), out.data(), in.data(), n);
    for (int c = 0; c < 3; ++c) {
      const int total = std::accumulate(in.begin() + c * n, in.begin() + (c + 1) * n, 0);
      CHECK(out[c] == total * 10000 + 96 * int(size));
    }
  }
}

TEST_CASE("__cluster_dims__ are the launch's where it has none", "[host][cluster]") {
  Kernel k(R"(
    #include <kiln/hopper.cuh>
    __global__ void __cluster_dims__(2, 3) k(int* out) {
      if (threadIdx.x == 0)
        out[blockIdx.y * gridDim.x + blockIdx.x] =
            kiln::hopper::cluster_size() * 10 + kiln::hopper::cluster_rank();
    })",
           "k");
  std::vector<int> out(24);
  k({4, 6}, {32}, 0, out.data());
  for (int y = 0; y < 6; ++y)
    for (int x = 0; x < 4; ++x) CHECK(out[y * 4 + x] == 60 + y % 3 * 2 + x % 2);
  CHECK_THAT(words_of([&] { k.in_clusters({2}, {4, 6}, {32}, 0, out.data()); }),
             contains("2 x 1 x 1") && contains("__cluster_dims__ are 2 x 3 x 1"));
  CHECK_THAT(words_of([&] { k({4, 4}, {32}, 0, out.data()); }), contains("cannot be divided"));
}

TEST_CASE("threads that exit count as arrived at the cluster's barrier", "[host][cluster]") {
  Kernel k(R"(
    #include <kiln/hopper.cuh>
    __global__ void k(int* out) {
      __shared__ int s;
      if (threadIdx.x == 0) s = blockIdx.x + 1;
      kiln::hopper::cluster_sync();
      if (threadIdx.x % 2) return;
      const int other = *kiln::hopper::at_block(&s, kiln::hopper::cluster_rank() ^ 1);
      kiln::hopper::cluster_sync();
      out[blockIdx.x * 64 + threadIdx.x] = other;
    })",
           "k");
  std::vector<int> out(128);
  k.in_clusters({2}, {2}, {64}, 0, out.data());
  for (int i = 0; i < 128; ++i) CHECK(out[i] == (i % 2 ? 0 : 2 - i / 64));
}

TEST_CASE("what is written to a block that may not have begun is lost", "[host][cluster]") {
  const std::string before = R"(
    #include <kiln/hopper.cuh>
    namespace hopper = kiln::hopper;
    __global__ void k(int* out) {
      __shared__ int cell;)";
  const std::string after = R"(
      if (threadIdx.x == 0) *hopper::at_block(&cell, hopper::cluster_rank() ^ 1) = blockIdx.x;
      hopper::cluster_sync();
      if (threadIdx.x == 0) out[blockIdx.x] = cell;
    })";
  std::vector<int> out(4);
  Kernel right(before + "hopper::cluster_sync();" + after, "k");
  right.in_clusters({2}, {4}, {32}, 0, out.data());
  CHECK(out == std::vector{1, 0, 3, 2});
  // Either block of a cluster may be the first one.
  Kernel wrong(before + after, "k");
  wrong.in_clusters({2}, {4}, {32}, 0, out.data());
  CHECK(out == std::vector{1, -1, -1, 2});
}

TEST_CASE("an mbarrier of a block that may not have begun is none", "[host][cluster]") {
  const auto kernel = [](const std::string& before) {
    return Kernel(R"(
      #include <kiln/hopper.cuh>
      namespace hopper = kiln::hopper;
      __global__ void k(int* out) {
        __shared__ hopper::Barrier met;
        if (threadIdx.x == 0) met.init(1);)" +
                      before + R"(
        if (threadIdx.x == 0) met.arrive_at(hopper::cluster_rank() ^ 1);
        hopper::cluster_sync();
        met.wait(0);
        out[blockIdx.x] = 1;
        hopper::cluster_sync();
      })",
                  "k");
  };
  std::vector<int> out(2);
  // This kernel leaves barriers behind, in what may be the same memory.
  kernel("hopper::cluster_sync();").in_clusters({2}, {2}, {32}, 0, out.data());
  CHECK(out == std::vector{1, 1});
  const Kernel wrong = kernel("");
  CHECK_THAT(words_of([&] { wrong.in_clusters({2}, {2}, {32}, 0, out.data()); }),
             contains("was not initialised"));
}

TEST_CASE("barriers of warps and blocks go together with those of clusters", "[host][cluster]") {
  Kernel k(R"(
    #include <kiln/hopper.cuh>
    __global__ void k(int* out) {
      __shared__ int s[96];
      const int t = threadIdx.x;
      s[t] = __shfl_xor_sync(~0u, t, 1);
      __syncthreads();
      const int odd = __syncthreads_count(s[95 - t] & 1);
      const unsigned low = __ballot_sync(~0u, t % 32 < 5);
      kiln::hopper::cluster_arrive();
      __syncthreads();
      const int sum = s[(t + 1) % 96] + odd + __popc(low);
      kiln::hopper::cluster_wait();
      __syncwarp();
      out[blockIdx.x * 96 + t] = sum + *kiln::hopper::at_block(s, 1 - blockIdx.x % 2);
      kiln::hopper::cluster_sync();
    })",
           "k");
  std::vector<int> out(4 * 96);
  k.in_clusters({2}, {4}, {96}, 0, out.data());
  for (int i = 0; i < 4 * 96; ++i) CHECK(out[i] == (((i % 96 + 1) % 96) ^ 1) + 48 + 5 + 1);
}

TEST_CASE("wrong use of clusters ends in errors with names", "[host][cluster]") {
  const auto words = [](const char* body, Extent cluster = {2}, Extent grid = {4}) {
    Kernel k(
        std::string("#include <kiln/hopper.cuh>\nnamespace hopper = kiln::hopper;\n"
                    "__global__ void k(int* out) { __shared__ int s[32]; s[threadIdx.x] = 1;") +
            body + "}",
        "k");
    std::vector<int> out(64);
    return words_of([&] { k.in_clusters(cluster, grid, {32}, 0, out.data()); });
  };
  CHECK_THAT(words("if (hopper::cluster_rank() == 1 && threadIdx.x == 0) hopper::cluster_wait(); "
                   "else hopper::cluster_sync();"),
             contains("has not arrived") && contains(", 0, 0)"));
  CHECK_THAT(words("if (hopper::cluster_rank() == 1) __syncthreads(); hopper::cluster_arrive(); "
                   "hopper::cluster_arrive(); hopper::cluster_wait();"),
             contains("a second time"));
  CHECK_THAT(words("if (threadIdx.x < 8) hopper::cluster_sync(); else __syncwarp(~0xffu), "
                   "__syncthreads();"),
             contains("deadlock") && contains("8 at") && contains("the cluster's barrier") &&
                 contains("24 at") && contains("__syncthreads"));
  CHECK_THAT(words("*hopper::at_block(s, 2) = 1;"), contains("block 2 of a cluster of 2 blocks"));
  CHECK_THAT(words("*hopper::at_block(out, 1) = 1;"), contains("not in the 128 bytes"));
  CHECK_THAT(words("hopper::cluster_sync();", {3}), contains("cannot be divided"));
  CHECK_THAT(words("hopper::cluster_sync();", {17}, {17}), contains("at most 16"));
  // The guard zones of every block are looked at.
  CHECK_THAT(words("if (hopper::cluster_rank() == 1) s[32 + threadIdx.x] = 0; "
                   "hopper::cluster_sync();"),
             contains("outside the shared memory") && contains("byte 128"));
}
