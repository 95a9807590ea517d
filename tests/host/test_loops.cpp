// Loops inside a thread, some of which the threads turn together, round by round. Each body below
// is compiled twice: as a kernel, and right here as the reference, one thread at a time.
#include "host_test.hpp"

using namespace host_test;

namespace {

struct Program {
  const char* name;
  std::string text;
  void (*reference)(int* out, const int* in, int t, int n);
};

}  // namespace

#define PROGRAM(name, ...)                                                              \
  static void name([[maybe_unused]] int* out, [[maybe_unused]] const int* in,           \
                   [[maybe_unused]] int t, [[maybe_unused]] int n) {                    \
    __VA_ARGS__                                                                         \
  }                                                                                     \
  static const Program name##_program{                                                  \
      #name,                                                                            \
      "__global__ void k(int* out, const int* in, int n) {"                             \
      " const int t = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;"  \
      " run((t * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x, out, in, n); }", \
      name};                                                                            \
  static const std::string name##_body =                                                \
      "__device__ void run(int t, int* out, const int* in, int n) {" #__VA_ARGS__ "}\n";

PROGRAM(uniform_trips, unsigned s = t; for (int i = 0; i < n; ++i) s = s * 3 + in[(t + i) % 509];
        out[t] = s;)
PROGRAM(own_trips, unsigned s = 1;
        for (int i = 0; i < (in[t] & 15); ++i) s = s * 5 + in[(t * 7 + i) % 509] - i; out[t] = s;)
PROGRAM(strided, unsigned s = 0; for (int i = t % 37; i < n * 40; i += 37) s += in[i % 509] ^ i;
        out[t] = s;)
PROGRAM(descending, unsigned s = 0; for (int i = n + t % 5; i > 0; i -= 2) s = s * 2 + in[i];
        out[t] = s;)
PROGRAM(
    breaks, unsigned s = 0; int i = 0; for (; i < n; ++i) {
      if ((in[(t + i) % 509] & 7) == 3) break;
      s += in[i] * (t & 3);
    } out[t] = s * 100 + i;)
PROGRAM(
    continues, unsigned s = 7; for (int i = 0; i < n; ++i) {
      if ((in[(t + i) % 509] & 3) == 1) continue;
      s = s * 3 + i;
    } out[t] = s;)
PROGRAM(
    returns, out[t] = -1; for (int i = 0; i < n; ++i) {
      if (in[(t * 3 + i) % 509] % 11 == 0) {
        out[t] = i;
        return;
      }
    } out[t] = 1000;)
PROGRAM(
    guarded,
    if (t % 3 == 0) {
      out[t] = 5;
      return;
    } unsigned s = 0;
    for (int i = 0; i < n; ++i) s += in[i] * t; out[t] = s;)
PROGRAM(
    nested, unsigned s = 0; for (int i = 0; i < n; ++i) {
      unsigned p = i;
      for (int j = 0; j <= i % 4; ++j) p = p * 2 + in[(t + j) % 509];
      s ^= p + i;
    } out[t] = s;)
PROGRAM(
    nested_own, unsigned s = t; for (int i = 0; i < (in[t] & 7); ++i) {
      for (int j = i; j < (in[(t + i) % 509] & 7); ++j) s = s * 3 + j;
      s -= i;
    } out[t] = s;)
PROGRAM(
    nested_exit, unsigned s = 0; for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        s += in[(i * 5 + j + t) % 509] & 15;
        if (s > 200) goto done;
        if (s % 13 == 5) break;
      }
      s += 2;
    } done : out[t] = s;)
PROGRAM(
    two_loops, unsigned a = 0; unsigned b = 1; int i = 0;
    for (; i < (in[t] & 15); ++i) a += in[i] - t; for (int j = i; j < n + 3; ++j) {
      b = b * 3 + a + i;
      a ^= j;
    } out[t] = a + b * 7;)
PROGRAM(
    loops_in_branches, unsigned s = t; if (in[t] & 1) {
      for (int i = 0; i < n; ++i) s = s * 3 + i;
    } else {
      for (int i = n; i > 0; --i) s ^= in[i] << (i & 3);
    } for (int i = 0; i < 3 + int(s & 3); ++i) s += i * i;
    out[t] = s;)
PROGRAM(
    swaps, unsigned a = t; unsigned b = 1; bool flip = false;
    for (int i = 0; i < n + (t & 1); ++i) {
      const unsigned c = a;
      a = b + in[i];
      b = c;
      flip = !flip ^ (a > b);
    } out[t] = a * 3 + b + (flip ? 1000 : 0);)
PROGRAM(
    stores, for (int i = 0; i < n; ++i) {
      if (((i + t) & 1) == 0) out[t] = in[(i * t) % 509] + out[t] / 2;
    })
PROGRAM(
    wide, unsigned long long s = t; double d = 0; unsigned char c = 0; for (int i = 0; i < n; ++i) {
      s = s * 1000003 + in[i];
      d += s % 7 * 0.5;
      c += in[(i + t) % 509];
    } out[t] = int(s >> 13) + int(d) + c;)
PROGRAM(arrays, int cells[5]; for (int i = 0; i < 5; ++i) cells[i] = t + i;
        for (int i = 0; i < n; ++i) cells[in[(t + i) % 509] % 5] += i; unsigned s = 0;
        for (int i = 0; i < 5; ++i) s = s * 31 + cells[i]; out[t] = s;)
PROGRAM(
    whiles, unsigned v = unsigned(in[t]) + 1u; int steps = 0; while (v != 1u && steps < 200) {
      v = v % 2u ? 3u * v + 1u : v / 2u;
      ++steps;
    } out[t] = steps;)
PROGRAM(
    do_while, unsigned s = 0; int i = t % 4; do {
      s += in[i];
      i += 3;
    } while (s < 600 && i < 400);
    out[t] = s - i;)
PROGRAM(
    switches, unsigned s = 0; for (int i = 0; i < n; ++i) {
      switch (in[(t + i) % 509] & 3) {
        case 0:
          s += i;
          break;
        case 1:
          s ^= t;
          continue;
        case 2:
          s *= 3;
          if (s > 5000) return;
          break;
        default:
          s -= 2;
      }
      s += 1;
    } out[t] = s;)

PROGRAM(
    guarded_nest, int b = t * 7; int d = 3; if (((5u >> (b & 31)) & 3) == 0) {
      for (int i = 0; i < n; ++i) {
        if ((b & 3) == 0) d ^= in[i];
        int k = 0;
        do {
          ++k;
        } while (k < 9 && (b & 1) == 0);
        d ^= k << 8;
      }
    } out[t] = d;)

// Loops that threads turn together: what neighbours read lies side by side.
PROGRAM(side_by_side, unsigned s = 0; for (int i = t; i < n * 40; i += 96) s = s * 3 + in[i];
        out[t] = s;)
PROGRAM(
    pointers, unsigned s = t; const int* p = in + t; for (int i = 0; i < n; ++i) {
      s = s * 3 + *p;
      p += 8;
    } out[t] = s + int(p - in);)
PROGRAM(ends_of_their_own, unsigned s = 1; int i = t;
        for (; i < t * 3 + (in[t] & 31); i += 5) s = s * 5 + in[i]; out[t] = s + i * 77;)
PROGRAM(
    some_leave, out[t] = 3; if (in[t] % 5 == 0) return; unsigned s = 0; if (t & 1) {
      for (int i = 0; i < n; ++i) s = s * 3 + in[t + i];
    } else {
      for (int i = n + 2; i > 0; --i) s = s * 7 + in[t + i * 3];
    } for (int i = t; i < n * 9; i += 4) s ^= in[i] * i;
    out[t] = s;)
PROGRAM(
    stores_of_rounds, unsigned s = 0; for (int i = 0; i < n; ++i) {
      out[t] = int(unsigned(out[t]) * 3u + in[t + i]);
      if (out[t] & 1) s += out[t];
    } out[t] ^= s;)
PROGRAM(
    carries, unsigned a = t; unsigned b = 1; for (unsigned i = t; i < unsigned(n * 30); i += 17) {
      const unsigned c = a;
      a = b * 3 + in[i];
      b = c + i;
    } out[t] = a * 3 + b;)

TEST_CASE("loops in threads agree with one thread at a time", "[host][loops]") {
  const std::pair<const Program*, const std::string*> programs[] = {
#define ENTRY(name) {&name##_program, &name##_body},
      ENTRY(uniform_trips) ENTRY(own_trips) ENTRY(strided) ENTRY(descending) ENTRY(breaks)
          ENTRY(continues) ENTRY(returns) ENTRY(guarded) ENTRY(nested) ENTRY(nested_own)
              ENTRY(nested_exit) ENTRY(two_loops) ENTRY(loops_in_branches) ENTRY(swaps)
                  ENTRY(stores) ENTRY(wide) ENTRY(arrays) ENTRY(whiles) ENTRY(do_while)
                      ENTRY(switches) ENTRY(guarded_nest) ENTRY(side_by_side) ENTRY(pointers)
                          ENTRY(ends_of_their_own) ENTRY(some_leave) ENTRY(stores_of_rounds)
                              ENTRY(carries)
#undef ENTRY
  };
  std::vector<int> in(1024);
  for (int i = 0; i < 1024; ++i) in[i] = (i * 7919 + i * i) % 251;
  for (auto [program, body] : programs) {
    Kernel kernel(*body + program->text, "k");
    for (Extent block : {Extent{64}, Extent{48}, Extent{7}, Extent{16, 3}, Extent{33, 2}}) {
      for (int n : {0, 1, 5, 23}) {
        CAPTURE(program->name, block.x, block.y, n);
        const int threads = static_cast<int>(2 * block.count());
        std::vector<int> out(threads, 77), expected(threads, 77);
        kernel({2}, block, 0, out.data(), in.data(), n);
        for (int t = 0; t < threads; ++t) program->reference(expected.data(), in.data(), t, n);
        REQUIRE(out == expected);
      }
    }
  }
}

TEST_CASE("loops between barriers go on with what the threads have exchanged", "[host][loops]") {
  // A warp's and a block's sums, in loops that the threads turn together and in one round the
  // loops.
  Kernel k(R"(
    __global__ void k(int* out, const int* in, int n) {
      __shared__ int parts[96];
      const int t = threadIdx.x;
      int total = 0;
      for (int round = 0; round < 3; ++round) {
        int sum = round;
        for (int i = t; i < n; i += blockDim.x) sum += in[i] * (round + 1);
        sum += __shfl_xor_sync(~0u, sum, 1);
        parts[t] = sum;
        __syncthreads();
        for (int i = 0; i < blockDim.x; ++i) total += parts[i] * (i + 1);
        __syncthreads();
      }
      for (int i = t; i < n; i += blockDim.x) out[blockIdx.x * n + i] = in[i] + total;
    })",
           "k");
  std::vector<int> in(300);
  for (int i = 0; i < 300; ++i) in[i] = i * 37 % 101;
  for (const int threads : {32, 96}) {
    for (const int n : {0, 5, 96, 97, 300}) {
      CAPTURE(threads, n);
      int total = 0;
      for (int round = 0; round < 3; ++round) {
        std::vector<int> sums(threads, round);
        for (int i = 0; i < n; ++i) sums[i % threads] += in[i] * (round + 1);
        for (int t = 0; t < threads; ++t) total += (sums[t] + sums[t ^ 1]) * (t + 1);
      }
      std::vector<int> out(2 * n + 1, -1);
      k({2}, {unsigned(threads)}, 0, out.data(), in.data(), n);
      for (int i = 0; i < 2 * n; ++i) REQUIRE(out[i] == in[i % n] + total);
      CHECK(out[2 * n] == -1);
    }
  }
}

TEST_CASE("threads of a block may wait for each other's lock", "[host][loops]") {
  Kernel k(R"(
    __global__ void k(int* lock, int* sum) {
      bool done = false;
      while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) { *sum += 1; atomicExch(lock, 0); done = true; }
      }
    })",
           "k");
  int lock = 0, sum = 0;
  k({1}, {64}, 0, &lock, &sum);
  CHECK(sum == 64);
}

TEST_CASE("what all threads read under a condition is read only if one meets it", "[host][loops]") {
  Kernel k(R"(
    __global__ void k(float* out, const float* in, const float* scale) {
      const int t = blockIdx.x * blockDim.x + threadIdx.x;
      if (in[t] > 0) out[t] = in[t] * scale[0];
    })",
           "k");
  std::vector<float> in(128, -1.0f), out(128, 7.0f);
  k({2}, {64}, 0, out.data(), in.data(), static_cast<const float*>(nullptr));
  CHECK(out == std::vector<float>(128, 7.0f));
  const float scale = 3;
  in[1] = in[77] = in[127] = 2;
  k({2}, {64}, 0, out.data(), in.data(), &scale);
  for (int i = 0; i < 128; ++i) CHECK(out[i] == (in[i] > 0 ? 6.0f : 7.0f));
}
