// mbarriers between warps and between blocks of a cluster, named barriers, and the errors that
// waits without end become.
#include <numeric>

#include "hopper_test.hpp"

using namespace host_test;

TEST_CASE("a producer warp and consumers hand buffers to and fro", "[host][mbarrier]") {
  Kernel k(std::string(kHopperHead) + R"(
    template <int stages> __global__ void k(int* out, const int* in, int n) {
      __shared__ int buffer[stages][32];
      __shared__ hopper::Barrier full[stages], empty[stages];
      if (threadIdx.x == 0) {
        for (int s = 0; s < stages; ++s) { full[s].init(32); empty[s].init(blockDim.x / 32 - 1); }
        hopper::publish_barriers();
      }
      __syncthreads();
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      int stage = 0, parity = 0, sum = 0;
      for (int i = 0; i < n; ++i) {
        if (warp == 0) {
          empty[stage].wait(parity ^ 1);
          buffer[stage][lane] = in[i * 32 + lane];
          full[stage].arrive();
        } else {
          full[stage].wait(parity);
          sum = sum * 3 + buffer[stage][(lane + warp) % 32];
          __syncwarp();
          if (lane == 0) empty[stage].arrive();
        }
        if (++stage == stages) stage = 0, parity ^= 1;
      }
      out[threadIdx.x] = sum;
    })",
           "k<3>");
  for (int n : {0, 1, 2, 3, 4, 7, 20}) {
    for (unsigned warps : {2u, 5u}) {
      CAPTURE(n, warps);
      std::vector<int> in(n * 32 + 1), out(warps * 32, -1);
      std::iota(in.begin(), in.end(), 7);
      k({1}, {warps * 32}, 0, out.data(), in.data(), n);
      for (unsigned t = 0; t < warps * 32; ++t) {
        int sum = 0;
        for (int i = 0; i < n && t >= 32; ++i) sum = sum * 3 + in[i * 32 + (t % 32 + t / 32) % 32];
        CHECK(out[t] == sum);
      }
    }
  }
}

TEST_CASE("a barrier of another block of the cluster", "[host][mbarrier]") {
  Kernel k(std::string(kHopperHead) + R"(
    __global__ void k(int* out, int rounds) {
      __shared__ int cell[32];
      __shared__ hopper::Barrier full, empty;
      const int rank = hopper::cluster_rank(), size = hopper::cluster_size(), lane = threadIdx.x;
      if (lane == 0) { full.init(32); empty.init(32); }
      hopper::cluster_sync();
      int value = rank * 100 + lane;
      for (int r = 0; r < rounds; ++r) {  // to the right neighbour, all at once
        empty.wait((r & 1) ^ 1);          // the right one has read what it was given
        *hopper::at_block(&cell[lane], (rank + 1) % size) = value;
        full.arrive_at((rank + 1) % size);
        full.wait_cluster(r & 1);
        value = cell[lane] + 1;
        empty.arrive_at((rank + size - 1) % size);
      }
      out[blockIdx.x * 32 + lane] = value;
      hopper::cluster_sync();
    })",
           "k");
  for (unsigned size : {1u, 2u, 4u, 7u}) {
    const int rounds = 11;
    std::vector<int> out(size * 32);
    k.in_clusters({size}, {size}, {32}, 0, out.data(), rounds);
    for (unsigned i = 0; i < size * 32; ++i) {
      const unsigned from = (i / 32 + size * 100 - rounds) % size;
      CHECK(out[i] == int(from * 100 + i % 32) + rounds);
    }
  }
}

TEST_CASE("threads that poll a barrier learn the truth, and others go on meanwhile",
          "[host][mbarrier]") {
  Kernel k(std::string(kHopperHead) + R"(
    __global__ void k(int* out) {
      __shared__ hopper::Barrier done;
      if (threadIdx.x == 0) done.init(1);
      __syncthreads();
      if (threadIdx.x >= 32) {
        int polls = 0;
        while (!done.passed(0)) ++polls;
        out[threadIdx.x] = polls;
      } else {
        for (int i = 0; i < 5; ++i) if (done.passed(0) || done.passed_already(0)) out[0] = 1;
        if (threadIdx.x == 0) done.arrive();
        if (done.passed(0) && done.passed_already(0)) out[threadIdx.x] += 10;
      }
    })",
           "k");
  std::vector<int> out(64);
  k({1}, {64}, 0, out.data());
  for (int t = 0; t < 32; ++t) CHECK(out[t] == 10);
  for (int t = 32; t < 64; ++t) CHECK((out[t] >= 0 && out[t] <= 11));
}

TEST_CASE("named barriers: some warps wait, others only arrive", "[host][named]") {
  Kernel k(std::string(kHopperHead) + R"(
    __global__ void k(int* out, int rounds) {
      __shared__ int ping[64], pong[64];
      const int t = threadIdx.x, half = t / 64, i = t % 64;
      int value = i;
      for (int r = 0; r < rounds; ++r) {
        if (half == 0) {
          ping[i] = value;
          hopper::named_arrive(1, 128);  // ping is full
          hopper::named_sync(2, 128);    // pong is full
          value = pong[63 - i] + 1;
        } else {
          hopper::named_sync(1, 128);
          pong[i] = ping[63 - i] * 2 + i / 32;
          hopper::named_sync(3, 64);  // among the second half alone
          hopper::named_arrive(2, 128);
        }
      }
      if (half == 0) out[i] = value;
    })",
           "k");
  for (int rounds : {0, 1, 2, 9}) {
    std::vector<int> out(64), expected(64);
    std::iota(expected.begin(), expected.end(), 0);
    for (int r = 0; r < rounds; ++r) {
      std::vector<int> pong(64);
      for (int i = 0; i < 64; ++i) pong[i] = expected[63 - i] * 2 + i / 32;
      for (int i = 0; i < 64; ++i) expected[i] = pong[63 - i] + 1;
    }
    k({1}, {128}, 0, out.data(), rounds);
    CHECK(out == expected);
  }
}

TEST_CASE("waits that never end are errors that name the barrier", "[host][mbarrier]") {
  const auto words = [](const char* body, unsigned cluster = 1) {
    Kernel k(
        std::string(kHopperHead) +
            "__global__ void k(int* out) { __shared__ int pad[16]; __shared__ hopper::Barrier b;"
            "pad[0] = 0; if (threadIdx.x == 0) b.init(2); hopper::cluster_sync();" +
            body + "}",
        "k");
    std::vector<int> out(256);
    return words_of([&] { k.in_clusters({cluster}, {cluster}, {64}, 0, out.data()); });
  };
  CHECK_THAT(words("if (threadIdx.x == 0) b.arrive(); b.wait(0);"),
             contains("deadlock") && contains("64 at") && contains("parity 0") &&
                 contains("1 of 2 arrivals missing") && contains("0 bytes missing") &&
                 contains("byte "));
  CHECK_THAT(words("if (threadIdx.x == 0) { b.arrive(); b.arrive_expect(48); } b.wait(0);"),
             contains("0 of 2 arrivals missing, 48 bytes missing"));
  CHECK_THAT(words("while (!b.passed(0)) {}"), contains("deadlock") && contains("2 of 2"));
  CHECK_THAT(words("b.arrive(); b.wait(0); b.wait(1);"), contains(""));
  CHECK_THAT(words("if (threadIdx.x < 3) b.arrive();"), !contains("deadlock"));
  CHECK_THAT(words("if (threadIdx.x == 40) for (int i = 0; i < 2; ++i) b.arrive(); if (threadIdx.x "
                   "== 50) { b.arrive_expect(16); b.arrive(); b.arrive(); }"),
             contains("0 of 2 arrivals missing when 1 more"));
  CHECK_THAT(words("b.state = 0; b.wait(0);"), contains("not initialised, or was overwritten"));
  CHECK_THAT(words("if (threadIdx.x == 0) reinterpret_cast<hopper::Barrier*>(pad + 1)->arrive();"),
             contains("not 8 aligned bytes"));
  CHECK_THAT(words("if (threadIdx.x == 0) b.init(0);"), contains("for 0 arrivals"));
  CHECK_THAT(words("if (hopper::cluster_rank() == 1) return; __syncthreads(); __syncthreads(); if "
                   "(threadIdx.x == 0) b.arrive_at(1);",
                   2),
             contains("has exited"));
  CHECK_THAT(words("if (hopper::cluster_rank() == 1) hopper::at_block(&b, 0)->wait(1); "
                   "hopper::cluster_sync();",
                   2),
             contains("another block"));
}

TEST_CASE("wrong use of named barriers ends in errors with names", "[host][named]") {
  const auto words = [](const char* body) {
    Kernel k(std::string(kHopperHead) + "__global__ void k(int* out) {" + body + "}", "k");
    std::vector<int> out(256);
    return words_of([&] { k.in_clusters({1}, {1}, {96}, 0, out.data()); });
  };
  CHECK_THAT(words("hopper::named_sync(4, 128);"),
             contains("deadlock") && contains("named barrier 4, where 96 of 128 threads are"));
  CHECK_THAT(words("hopper::named_sync(4, threadIdx.x < 32 ? 64 : 96);"),
             contains("named barrier 4") && contains("64 threads for some warps"));
  CHECK_THAT(words("hopper::named_sync(16, 96);"), contains("barriers 0 to 15"));
  CHECK_THAT(words("hopper::named_sync(1, 40);"), contains("multiples of 32"));
  CHECK_THAT(words("if (threadIdx.x < 16) hopper::named_sync(1, 96); else hopper::named_sync(2, "
                   "96);"),
             contains("deadlock") && contains("named barrier 1") && contains("named barrier 2"));
}
