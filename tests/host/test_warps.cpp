// Warp-level primitives: full and partial warps, divergence, partial masks.
#include <algorithm>

#include "host_test.hpp"

using namespace host_test;

TEST_CASE("shuffle reductions", "[host][warp]") {
  Kernel k(R"(
    template <class T> __global__ void k(T* out, const T* in) {
      const int t = blockIdx.x * blockDim.x + threadIdx.x;
      T a = in[t], b = a, c = a, d = a;
      for (int o = 16; o > 0; o /= 2) a += __shfl_xor_sync(~0u, a, o);
    #pragma unroll
      for (int o = 16; o > 0; o /= 2) b += __shfl_down_sync(~0u, b, o);
      for (int o = 1; o < 32; o *= 2) {
        T left = __shfl_up_sync(~0u, c, o);
        if (threadIdx.x % 32 >= o) c += left;
      }
      d = __shfl_sync(~0u, d, (threadIdx.x * 5 + 3) % 32);
      out[4 * t] = a; out[4 * t + 1] = b; out[4 * t + 2] = c; out[4 * t + 3] = d;
    })",
           "k<int>");
  std::vector<int> in(256), out(1024);
  for (int i = 0; i < 256; ++i) in[i] = (i * 7919) % 1013 - 500;
  k({2}, {128}, 0, out.data(), in.data());
  for (int i = 0; i < 256; ++i) {
    const int base = i / 32 * 32;
    int all = 0, before = 0;
    for (int l = 0; l < 32; ++l) all += in[base + l];
    for (int l = base; l <= i; ++l) before += in[l];
    CHECK(out[4 * i] == all);
    if (i % 32 == 0) CHECK(out[4 * i + 1] == all);
    CHECK(out[4 * i + 2] == before);
    CHECK(out[4 * i + 3] == in[base + (i % 32 * 5 + 3) % 32]);
  }
}

TEST_CASE("shuffles of every type", "[host][warp]") {
  Kernel k(R"(
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    __global__ void k(double* out) {
      const int t = threadIdx.x;
      double s = 0;
      s += __shfl_xor_sync(~0u, 1.5f * t, 1);
      s += __shfl_xor_sync(~0u, 1e10 + t, 1);
      s += __shfl_xor_sync(~0u, (1ll << 40) + t, 1);
      s += __shfl_xor_sync(~0u, (unsigned)t, 1);
      s += __shfl_xor_sync(~0u, (short)-t, 1);
      s += (float)__shfl_xor_sync(~0u, __half(t), 1);
      s += (float)__shfl_xor_sync(~0u, __nv_bfloat16(t), 1);
      s += (float)__shfl_xor_sync(~0u, __floats2half2_rn(t, 2 * t), 1).y;
      out[t] = s;
    })",
           "k");
  std::vector<double> out(32);
  k({1}, {32}, 0, out.data());
  for (int t = 0; t < 32; ++t) {
    const double o = t ^ 1;
    CHECK(out[t] == 1.5 * o + (1e10 + o) + (double(1ll << 40) + o) + o - o + o + o + 2 * o);
  }
}

TEST_CASE("shuffle widths", "[host][warp]") {
  Kernel k(R"(
    __global__ void k(int* out, int width) {
      const int t = threadIdx.x;
      out[t] = __shfl_sync(~0u, t, 3, width);
      out[32 + t] = __shfl_up_sync(~0u, t, 2, width);
      out[64 + t] = __shfl_down_sync(~0u, t, 3, width);
      out[96 + t] = __shfl_xor_sync(~0u, t, 5, width);
      out[128 + t] = __shfl_xor_sync(~0u, t, width, width);
    })",
           "k");
  for (int width : {8, 16, 32}) {
    CAPTURE(width);
    std::vector<int> out(160, -1);
    k({1}, {32}, 0, out.data(), width);
    for (int t = 0; t < 32; ++t) {
      const int first = t / width * width, in = t % width;
      CHECK(out[t] == first + 3);
      CHECK(out[32 + t] == (in >= 2 ? t - 2 : t));
      CHECK(out[64 + t] == (in + 3 < width ? t + 3 : t));
      CHECK(out[96 + t] == (t ^ 5));
      // A source in a later group: own value. In an earlier one: that lane's.
      CHECK(out[128 + t] == (width == 32 || (t ^ width) >= first + width ? t : (t ^ width)));
    }
  }
}

TEST_CASE("a shuffle is read before anyone sends again", "[host][warp]") {
  Kernel k(R"(
    __global__ void k(int* out, int rounds) {
      int v = threadIdx.x;
      for (int r = 0; r < rounds; ++r) v = __shfl_sync(~0u, v, (threadIdx.x + 1) % 32);
      out[threadIdx.x] = v;
    })",
           "k");
  std::vector<int> out(32);
  k({1}, {32}, 0, out.data(), 7);
  for (int t = 0; t < 32; ++t) CHECK(out[t] == (t + 7) % 32);
}

TEST_CASE("shuffles in branches of whole warps and of lanes", "[host][warp]") {
  Kernel k(R"(
    __global__ void k(int* out) {
      __shared__ int parts[4];
      const int t = threadIdx.x, lane = t % 32, warp = t / 32;
      int v = t;
      for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(~0u, v, o);
      if (lane == 0) parts[warp] = v;
      __syncthreads();
      if (warp == 0) {                     // only the first warp
        int p = lane < 4 ? parts[lane] : 0;
        for (int o = 2; o > 0; o /= 2) p += __shfl_down_sync(~0u, p, o);
        if (lane == 0) out[128] = p;
      }
      int w;
      if (lane < 16) {                     // partial masks, two at a time, different trip counts
        w = lane;
        for (int o = 8; o > 0; o /= 2) w += __shfl_xor_sync(0x0000ffffu, w, o);
      } else {
        w = -lane;
        for (int i = 0; i < 9; ++i) w = __shfl_sync(0xffff0000u, w, 16 + (lane + 1) % 16);
      }
      __syncwarp();
      out[t] = w;
    })",
           "k");
  std::vector<int> out(129);
  k({1}, {128}, 0, out.data());
  CHECK(out[128] == 127 * 128 / 2);
  for (int t = 0; t < 128; ++t) {
    const int lane = t % 32;
    CHECK(out[t] == (lane < 16 ? 120 : -(16 + (lane + 9) % 16)));
  }
}

TEST_CASE("ballot, any, all, match, reduce, activemask", "[host][warp]") {
  Kernel k(R"(
    __global__ void k(unsigned* out, int bound) {
      const int t = threadIdx.x;
      unsigned* o = out + 12 * t;
      o[0] = __ballot_sync(~0u, t % 32 < bound);
      o[1] = __any_sync(~0u, t % 32 < bound) != 0;
      o[2] = __all_sync(~0u, t % 32 < bound) != 0;
      o[3] = __match_any_sync(~0u, t % 3);
      o[4] = __reduce_add_sync(~0u, (unsigned)t);
      o[5] = (unsigned)__reduce_min_sync(~0u, -t);
      o[6] = __reduce_max_sync(~0u, (unsigned)t ^ 5u);
      o[7] = __reduce_or_sync(~0u, 1u << (t % 8));
      o[8] = 77;
      if (t % 4 == 1) o[8] = __activemask();
      int agree;
      o[9] = __match_all_sync(~0u, bound, &agree);
      o[10] = agree;
      o[11] = __popc(__ballot_sync(~0u, 1));
    })",
           "k");
  for (int bound : {0, 5, 32}) {
    for (int threads : {32, 64, 40}) {
      std::vector<unsigned> out(12 * threads);
      k({1}, {unsigned(threads)}, 0, out.data(), bound);
      for (int t = 0; t < threads; ++t) {
        const int base = t / 32 * 32, lanes = std::min(32, threads - base);
        CAPTURE(bound, threads, t);
        unsigned ballot = 0, match = 0, add = 0, max = 0, bits = 0, quarter = 0;
        for (int l = 0; l < lanes; ++l) {
          ballot |= unsigned(l < bound) << l;
          match |= unsigned((base + l) % 3 == t % 3) << l;
          add += unsigned(base + l);
          max = std::max(max, unsigned(base + l) ^ 5u);
          bits |= 1u << ((base + l) % 8);
          quarter |= unsigned((base + l) % 4 == 1) << l;
        }
        const unsigned present = lanes == 32 ? ~0u : (1u << lanes) - 1;
        const unsigned* o = &out[12 * t];
        CHECK(o[0] == ballot);
        CHECK(o[1] == (ballot != 0));
        CHECK(o[2] == (ballot == present));
        CHECK(o[3] == match);
        CHECK(o[4] == add);
        CHECK(o[5] == unsigned(-(base + lanes - 1)));
        CHECK(o[6] == max);
        CHECK(o[7] == bits);
        CHECK(o[8] == (t % 4 == 1 ? quarter : 77));
        CHECK(o[9] == present);
        CHECK(o[10] == 1);
        CHECK(o[11] == unsigned(lanes));
      }
    }
  }
}

TEST_CASE("lanes that exited do not hold up a warp", "[host][warp]") {
  Kernel k(R"(
    __global__ void k(unsigned* out, int alive) {
      if ((int)threadIdx.x % 32 >= alive) return;
      unsigned here = __ballot_sync(~0u, 1);
      __syncwarp();
      __syncthreads();
      out[threadIdx.x] = here;
    })",
           "k");
  for (int alive : {1, 13, 32}) {
    std::vector<unsigned> out(64, 9);
    k({1}, {64}, 0, out.data(), alive);
    for (int t = 0; t < 64; ++t) {
      CHECK(out[t] == (t % 32 < alive ? (alive == 32 ? ~0u : (1u << alive) - 1) : 9u));
    }
  }
}

TEST_CASE("a mask without the calling lane is an error", "[host][warp]") {
  Kernel k("__global__ void k(int* out) { out[0] = __shfl_sync(0x1u, 1, 0); }", "k");
  int out = 0;
  CHECK_THROWS_WITH(k({1}, {32}, 0, &out), contains("a shuffle"));
}

TEST_CASE("a mask that a vote made lives across suspensions", "[host][warp]") {
  Kernel k(R"(
    __global__ void k(unsigned* out, const unsigned* in) {
      const unsigned t = threadIdx.x;
      unsigned r = in[t];
      const unsigned m = __ballot_sync(~0u, r & 1);
      if (r & 1) {
        const unsigned leader = __ffs(m) - 1;
        for (int i = 0; i < 3; ++i) r += __shfl_sync(m, r, leader);
        __syncwarp(m);
        __syncwarp(m);
      }
      out[t] = r;
    })",
           "k");
  std::vector<unsigned> in(64), out(64);
  for (unsigned i = 0; i < 64; ++i) in[i] = i * 2654435761u >> 7;
  k({1}, {64}, 0, out.data(), in.data());
  for (unsigned warp = 0; warp < 64; warp += 32) {
    std::vector<unsigned> want(in.begin() + warp, in.begin() + warp + 32);
    unsigned leader = 0;
    while ((want[leader] & 1) == 0) ++leader;
    std::vector<unsigned> odd;
    for (unsigned l = 0; l < 32; ++l)
      if (in[warp + l] & 1) odd.push_back(l);
    for (int i = 0; i < 3; ++i) {
      const unsigned sent = want[leader];
      for (unsigned l : odd) want[l] += sent;
    }
    for (unsigned l = 0; l < 32; ++l) CHECK(out[warp + l] == want[l]);
  }
}
