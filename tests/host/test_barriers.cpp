// Block barriers: what is alive across them, where they may stand, and what happens when they
// diverge.
#include <array>
#include <numeric>

#include "host_test.hpp"

using namespace host_test;

namespace {

std::vector<int> iota(int n, int first = 0) {
  std::vector<int> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

}  // namespace

TEST_CASE("block reduction: barrier in a loop", "[host][barrier]") {
  Kernel sum(R"(
    template <int block> __global__ void sum(int* out, const int* in, int n) {
      __shared__ int part[block];
      int mine = 0;
      for (int i = blockIdx.x * block + threadIdx.x; i < n; i += gridDim.x * block) mine += in[i];
      part[threadIdx.x] = mine;
      __syncthreads();
      for (int half = block / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
      }
      if (threadIdx.x == 0) out[blockIdx.x] = part[0];
    })",
             "sum<256>");
  const std::vector<int> in = iota(100000, -777);
  std::vector<int> out(7, -1);
  sum({7}, {256}, 0, out.data(), in.data(), 100000);
  CHECK(std::accumulate(out.begin(), out.end(), 0LL) == std::accumulate(in.begin(), in.end(), 0LL));
  CHECK(sum.module().kernel().static_shared == 1024);
}

TEST_CASE("a barrier in a loop whose trip count is an argument", "[host][barrier]") {
  Kernel scan(R"(
    __global__ void scan(int* data, int rounds) {
      extern __shared__ int s[];
      int t = threadIdx.x;
      s[t] = data[blockIdx.x * blockDim.x + t];
      __syncthreads();
      for (int r = 0, d = 1; r < rounds; ++r, d *= 2) {
        int add = t >= d ? s[t - d] : 0;
        __syncthreads();
        s[t] += add;
        __syncthreads();
      }
      data[blockIdx.x * blockDim.x + t] = s[t];
    })",
              "scan");
  for (int block : {1, 2, 31, 33, 100, 1024}) {
    CAPTURE(block);
    std::vector<int> data = iota(block * 3, 5), expected = data;
    for (int b = 0; b < 3; ++b) {
      for (int i = 1; i < block; ++i) expected[b * block + i] += expected[b * block + i - 1];
    }
    scan({3}, {unsigned(block)}, block * sizeof(int), data.data(), 10);
    CHECK(data == expected);
  }
}

TEST_CASE("barriers in uniform branches", "[host][barrier]") {
  Kernel k(R"(
    __global__ void k(int* out, int mode) {
      __shared__ int s[64];
      int t = threadIdx.x, v = t * 3;
      if (mode & 1) {
        s[t] = v;
        __syncthreads();
        v = s[63 - t];
        if (mode & 2) {
          __syncthreads();
          s[t] = v + 1;
          __syncthreads();
          v += s[(t + 1) % 64];
        }
      } else {
        v = -v;
      }
      __syncthreads();
      out[blockIdx.x * 64 + t] = v;
    })",
           "k");
  for (int mode = 0; mode < 4; ++mode) {
    std::vector<int> out(128, -9);
    k({2}, {64}, 0, out.data(), mode);
    for (int i = 0; i < 128; ++i) {
      const int t = i % 64;
      int v = 3 * t;
      if (mode & 1) {
        v = 3 * (63 - t);
        if (mode & 2) v += 3 * (63 - (t + 1) % 64) + 1;
      } else {
        v = -v;
      }
      CHECK(out[i] == v);
    }
  }
}

TEST_CASE("a trip count that depends on data, between barriers", "[host][barrier]") {
  Kernel k(R"(
    __global__ void k(int* out, const int* trips) {
      __shared__ int s[96];
      int t = threadIdx.x;
      int v = 1;
      for (int i = 0; i < trips[t]; ++i) v = v * 3 + i;
      s[t] = v;
      __syncthreads();
      int w = 0;
      for (int i = 0; i < trips[95 - t]; ++i) w += s[i % 96];
      __syncthreads();
      out[t] = v + w;
    })",
           "k");
  std::vector<int> trips(96), out(96), s(96);
  for (int t = 0; t < 96; ++t) trips[t] = (t * 37) % 11;
  k({1}, {96}, 0, out.data(), trips.data());
  for (int t = 0; t < 96; ++t) {
    s[t] = 1;
    for (int i = 0; i < trips[t]; ++i) s[t] = s[t] * 3 + i;
  }
  for (int t = 0; t < 96; ++t) {
    int w = 0;
    for (int i = 0; i < trips[95 - t]; ++i) w += s[i % 96];
    CHECK(out[t] == s[t] + w);
  }
}

TEST_CASE("values, arrays and loop variables that live across barriers", "[host][barrier]") {
  Kernel k(R"(
    struct Pair { double d; short s; bool b; };
    __global__ void k(double* out, const int* index, int n) {
      __shared__ int s[50];
      const int t = threadIdx.x;
      int local[8];                       // indexed at run time: stays in memory
      for (int i = 0; i < 8; ++i) local[i] = t * 10 + i;
      Pair pair{t * 0.5, short(-t), t % 3 == 0};
      unsigned char byte = t;
      long long carry = 1ll << 40;
      bool flip = false;
      for (int i = 0; i < n; ++i) {       // i, carry, flip: PHIs
        s[t] = local[index[i] & 7];
        __syncthreads();
        local[i & 7] += s[(t + 1) % 50];
        carry += local[index[n - 1 - i] & 7];
        flip = !flip ^ pair.b;
        byte += 7;
        __syncthreads();
      }
      out[t] = pair.d + pair.s + (double)carry + (flip ? 0.25 : 0.0) + byte;
    })",
           "k");
  const std::vector<int> index = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  const int n = static_cast<int>(index.size());
  std::vector<double> out(50), expected(50);
  k({1}, {50}, 0, out.data(), index.data(), n);
  std::vector<std::array<int, 8>> local(50);
  std::vector<long long> carry(50, 1ll << 40);
  std::vector<bool> flip(50, false);
  for (int t = 0; t < 50; ++t) {
    for (int i = 0; i < 8; ++i) local[t][i] = t * 10 + i;
  }
  for (int i = 0; i < n; ++i) {
    std::vector<int> s(50);
    for (int t = 0; t < 50; ++t) s[t] = local[t][index[i] & 7];
    for (int t = 0; t < 50; ++t) {
      local[t][i & 7] += s[(t + 1) % 50];
      carry[t] += local[t][index[n - 1 - i] & 7];
      flip[t] = !flip[t] ^ (t % 3 == 0);
    }
  }
  for (int t = 0; t < 50; ++t) {
    const unsigned char byte = static_cast<unsigned char>(t + 7 * n);
    CHECK(out[t] == t * 0.5 - t + double(carry[t]) + (flip[t] ? 0.25 : 0.0) + byte);
  }
}

TEST_CASE("nested loops with barriers at both levels", "[host][barrier]") {
  Kernel k(R"(
    __global__ void k(int* out, int outer, int inner) {
      __shared__ int s[40];
      int t = threadIdx.x, acc = t;
      for (int i = 0; i < outer; ++i) {
        int base = acc * 2 + i;
        s[t] = base;
        __syncthreads();
        for (int j = 0; j < inner; ++j) {
          int other = s[(t + j + 1) % 40];
          __syncthreads();
          s[t] = other + base;
          __syncthreads();
          acc += s[(t + 39) % 40] & 1023;
        }
        __syncthreads();
      }
      out[t] = acc;
    })",
           "k");
  for (auto [outer, inner] : {std::pair{0, 3}, {3, 0}, {1, 1}, {4, 5}}) {
    std::vector<int> out(40), acc = iota(40), s(40);
    k({1}, {40}, 0, out.data(), outer, inner);
    for (int i = 0; i < outer; ++i) {
      std::vector<int> base(40);
      for (int t = 0; t < 40; ++t) s[t] = base[t] = acc[t] * 2 + i;
      for (int j = 0; j < inner; ++j) {
        std::vector<int> old = s;
        for (int t = 0; t < 40; ++t) s[t] = old[(t + j + 1) % 40] + base[t];
        for (int t = 0; t < 40; ++t) acc[t] += s[(t + 39) % 40] & 1023;
      }
    }
    CHECK(out == acc);
  }
}

TEST_CASE("static shared memory of a device function called twice is one variable",
          "[host][shared]") {
  Kernel k(R"(
    template <int n> __device__ int* buffer() { __shared__ int cells[n]; return cells; }
    __device__ int exchange(int v) {
      __shared__ int cells[32];
      int old = cells[threadIdx.x];
      __syncthreads();
      cells[31 - threadIdx.x] = v;
      __syncthreads();
      return old;
    }
    __global__ void k(int* out) {
      exchange(threadIdx.x);
      out[threadIdx.x] = exchange(0);
      buffer<32>()[threadIdx.x] = 100 + threadIdx.x;
      buffer<33>()[threadIdx.x] = 200 + threadIdx.x;
      __syncthreads();
      out[32 + threadIdx.x] = buffer<32>()[31 - threadIdx.x];
    })",
           "k");
  std::vector<int> out(64, -1);
  k({1}, {32}, 0, out.data());
  for (int t = 0; t < 32; ++t) CHECK(out[t] == 31 - t);
  for (int t = 0; t < 32; ++t) CHECK(out[32 + t] == 131 - t);
}

TEST_CASE("dynamic shared memory under several types and names", "[host][shared]") {
  Kernel k(R"(
    extern __shared__ __align__(16) unsigned char raw[];
    __device__ void fill(int t) {
      extern __shared__ float4 quads[];
      quads[t] = make_float4(t, t + 0.25f, t + 0.5f, t + 0.75f);
    }
    __global__ void k(float* out, int* bytes) {
      extern __shared__ double doubles[];
      __shared__ int fixed[3];
      alignas(128) __shared__ char aligned[5];
      int t = threadIdx.x;
      if (t < 3) fixed[t] = -1;
      fill(t);
      __syncthreads();
      out[t] = reinterpret_cast<float*>(raw)[4 * t + 3] + fixed[t % 3];
      if (t == 0) {
        bytes[0] = (const char*)doubles == (const char*)raw;
        bytes[1] = (size_t)aligned % 128 == 0;
        bytes[2] = (size_t)raw % 128 == 0;
        bytes[3] = (const char*)raw - (const char*)fixed >= (long)sizeof(fixed);
      }
    })",
           "k");
  std::vector<float> out(48);
  std::vector<int> bytes(4);
  k({1}, {48}, 48 * 16, out.data(), bytes.data());
  for (int t = 0; t < 48; ++t) CHECK(out[t] == t + 0.75f - 1);
  CHECK(bytes == std::vector<int>{1, 1, 1, 1});
}

TEST_CASE("threads that exit before a barrier count as arrived", "[host][barrier]") {
  Kernel k(R"(
    __global__ void k(int* out, int alive) {
      __shared__ int s[128];
      s[threadIdx.x] = 0;
      __syncthreads();
      if ((int)threadIdx.x >= alive) return;
      s[threadIdx.x] = 1 + threadIdx.x;
      int present = __syncthreads_count(threadIdx.x % 2);
      if (threadIdx.x == 5) return;
      __syncthreads();
      int total = 0;
      for (int i = 0; i < 128; ++i) total += s[i];
      out[threadIdx.x] = total * 1000 + present;
    })",
           "k");
  for (int alive : {1, 7, 32, 45, 128}) {
    CAPTURE(alive);
    std::vector<int> out(128, -1);
    k({1}, {128}, 0, out.data(), alive);
    for (int t = 0; t < 128; ++t) {
      const bool ran = t < alive && t != 5;
      CHECK(out[t] == (ran ? alive * (alive + 1) / 2 * 1000 + alive / 2 : -1));
    }
  }
}

TEST_CASE("__syncthreads_count, _and, _or", "[host][barrier]") {
  Kernel k(R"(
    __global__ void k(int* out, int below) {
      int p = (int)threadIdx.x < below ? 4 : 0;
      int count = __syncthreads_count(p);
      int all = __syncthreads_and(p), any = __syncthreads_or(p);
      out[threadIdx.x] = count * 100 + (all != 0) * 10 + (any != 0);
    })",
           "k");
  for (int below : {0, 1, 40, 70}) {
    std::vector<int> out(70);
    k({1}, {70}, 0, out.data(), below);
    CHECK(out == std::vector<int>(70, below * 100 + (below == 70) * 10 + (below > 0)));
  }
}

TEST_CASE("a divergent barrier is an error, not a hang", "[host][barrier]") {
  SECTION("threads of one warp at different barriers") {
    Kernel k(R"(
      __global__ void k(int* out) {
        if (threadIdx.x < 16) { __syncthreads(); out[threadIdx.x] = 1; }
        else { out[threadIdx.x] = 2; __syncthreads(); out[threadIdx.x] = 3; }
      })",
             "k");
    std::vector<int> out(32);
    CHECK_THROWS_WITH(k({1}, {32}, 0, out.data()),
                      contains("divergent barrier") && contains("k") && contains("16 at"));
  }
  SECTION("a warp waits for lanes that wait for the block") {
    Kernel k(R"(
      __global__ void k(int* out) {
        if (threadIdx.x == 3) __syncthreads(); else __syncwarp();
        out[threadIdx.x] = 1;
      })",
             "k");
    std::vector<int> out(64);
    CHECK_THROWS_AS(k({5, 2}, {64}, 0, out.data()), kiln::UserError);
  }
  SECTION("warps may meet at different barriers") {
    Kernel k(R"(
      __global__ void k(int* out) {
        __shared__ int s;
        if (threadIdx.x < 32) { if (threadIdx.x == 0) s = 42; __syncthreads(); }
        else { __syncthreads(); out[threadIdx.x] = s; }
      })",
             "k");
    std::vector<int> out(64, 42);
    k({1}, {64}, 0, out.data());
    CHECK(out == std::vector<int>(64, 42));
  }
}

TEST_CASE("blocks of 1024 threads, odd three-dimensional blocks and grids", "[host][index]") {
  Kernel k(R"(
    __global__ void k(unsigned* out, unsigned* seen) {
      __shared__ unsigned s[1024];
      const dim3 b = blockDim;
      unsigned t = (threadIdx.z * b.y + threadIdx.y) * b.x + threadIdx.x;
      unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      unsigned n = b.x * b.y * b.z;
      s[n - 1 - t] = threadIdx.x | threadIdx.y << 10 | threadIdx.z << 20;
      __syncthreads();
      out[block * n + t] = s[t];
      atomicAdd(seen, 1u);
    })",
           "k");
  for (Extent block :
       {Extent{1024}, Extent{7, 5, 3}, Extent{1, 31, 2}, Extent{16, 16, 4}, Extent{3, 1, 64}}) {
    for (Extent grid : {Extent{1}, Extent{3, 2, 5}, Extent{1, 7}}) {
      const unsigned n = static_cast<unsigned>(block.count());
      std::vector<unsigned> out(n * grid.count(), ~0u);
      unsigned seen = 0;
      k(grid, block, 0, out.data(), &seen);
      REQUIRE(seen == out.size());
      for (unsigned i = 0; i < out.size(); ++i) {
        const unsigned t = n - 1 - i % n;
        const unsigned x = t % block.x, y = t / block.x % block.y, z = t / (block.x * block.y);
        REQUIRE(out[i] == (x | y << 10 | z << 20));
      }
    }
  }
}

// Loop variables that threads count differently, carried round a loop with a barrier.
TEST_CASE("a cursor that each thread moves on its own is its own after a barrier",
          "[host][barrier]") {
  Kernel scan(R"(
    __global__ void scan(int* out, const int* a, int n) {
      int t = threadIdx.x, j = 0;
      for (int r = 0; r < n; ++r) {
        __syncthreads();
        while (a[t * 64 + j]) ++j;
        ++j;
      }
      out[t] = j;
    })",
              "scan");
  std::vector<int> a(4 * 64), out(4);
  for (int t = 0; t < 4; ++t)
    for (int j = 0; j < 64; ++j) a[t * 64 + j] = (j + 1) % (t + 1) != 0;
  scan({1}, {4}, 0, out.data(), a.data(), 3);
  CHECK(out == std::vector<int>{3, 6, 9, 12});
}

TEST_CASE("threads may come to one barrier in different rounds of its loop", "[host][barrier]") {
  Kernel skip(R"(
    __global__ void skip(int* out, int n) {
      int t = threadIdx.x, met = 0, round = 0;
      for (; met < n; ++round) {
        if (round % (t + 1) != t) continue;
        __syncthreads();
        ++met;
      }
      out[t] = round;
    })",
              "skip");
  std::vector<int> out(5);
  skip({1}, {5}, 0, out.data(), 3);
  CHECK(out == std::vector<int>{3, 6, 9, 12, 15});
}
