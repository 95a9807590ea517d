// Atomics, module variables, parameters passed by value, copies.
#include <algorithm>

#include "host_test.hpp"

using namespace host_test;

TEST_CASE("atomics on global memory, across blocks", "[host][atomic]") {
  Kernel k(R"(
    struct Cells { int add, sub, lo, hi, and_, or_, xor_; unsigned inc, dec, cas; unsigned long long wide;
                   float f; double d; int low_word; };
    __global__ void k(Cells* c, unsigned* order) {
      const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
      atomicAdd(&c->add, 1); atomicSub(&c->sub, 2);
      atomicMin(&c->lo, -(int)i); atomicMax(&c->hi, (int)i);
      atomicAnd(&c->and_, ~(1 << (i % 16))); atomicOr(&c->or_, 1 << (i % 16)); atomicXor(&c->xor_, i);
      atomicInc(&c->inc, 99u); atomicDec(&c->dec, 99u);
      unsigned seen = c->cas, assumed;
      do { assumed = seen; seen = atomicCAS(&c->cas, assumed, assumed + 3); } while (seen != assumed);
      order[i] = (unsigned)atomicAdd(&c->wide, 1ull);
      atomicAdd(&c->f, 0.5f); atomicAdd(&c->d, 0.25);
    })",
           "k");
  struct Cells {
    int add, sub, lo, hi, and_, or_, xor_;
    unsigned inc, dec, cas;
    unsigned long long wide;
    float f;
    double d;
    int low_word;
  } c{};
  c.and_ = -1;
  const int n = 64 * 250;
  std::vector<unsigned> order(n);
  k({250}, {64}, 0, &c, order.data());
  int x = 0;
  for (int i = 0; i < n; ++i) x ^= i;
  CHECK(c.add == n);
  CHECK(c.sub == -2 * n);
  CHECK(c.lo == 1 - n);
  CHECK(c.hi == n - 1);
  CHECK(c.and_ == ~0xffff);
  CHECK(c.or_ == 0xffff);
  CHECK(c.xor_ == x);
  CHECK(c.inc == n % 100);
  CHECK(c.dec == (100 - n % 100) % 100);
  CHECK(c.cas == 3u * n);
  CHECK(c.wide == unsigned(n));
  CHECK(c.f == 0.5f * n);
  CHECK(c.d == 0.25 * n);
  std::sort(order.begin(), order.end());
  for (int i = 0; i < n; ++i) REQUIRE(order[i] == unsigned(i));
}

TEST_CASE("atomics on shared memory: a histogram", "[host][atomic]") {
  Kernel k(R"(
    #include <cuda_bf16.h>
    __global__ void k(unsigned* out, const unsigned char* in, int n, float* total) {
      __shared__ unsigned bins[256];
      __shared__ float sum;
      __shared__ __nv_bfloat16 small;
      for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
      if (threadIdx.x == 0) sum = 0, small = 0.0f;
      __syncthreads();
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&bins[in[i]], 1u);
      atomicAdd(&sum, 1.0f);
      atomicAdd(&small, __nv_bfloat16(0.5f));
      __syncthreads();
      for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&out[i], bins[i]);
      if (threadIdx.x == 0) atomicAdd(total, sum + (float)small);
    })",
           "k");
  std::vector<unsigned char> in(50000);
  std::vector<unsigned> out(256), expected(256);
  for (std::size_t i = 0; i < in.size(); ++i) ++expected[in[i] = (i * i + i / 7) & 255];
  float total = 0;
  k({9}, {96}, 0, out.data(), in.data(), int(in.size()), &total);
  CHECK(out == expected);
  CHECK(total == 9 * 96 * 1.5f);
}

TEST_CASE("structs by value, small, large, indexed at run time", "[host][parameter]") {
  Kernel k(R"(
    struct Small { char a; short b; };
    struct Large { double d[9]; int n; };
    __global__ void k(double* out, Small s, Large l, bool flag, unsigned char byte, float f, const int* index) {
      __shared__ double x[16];
      const int t = threadIdx.x;
      x[t] = l.d[index[t] % 9];
      l.d[t % 9] = -1;                       // a thread's own copy
      __syncthreads();
      out[t] = x[15 - t] + l.d[index[t] % 9] + s.a + s.b + l.n + (flag ? byte : 0) + f;
    })",
           "k");
  struct Small {
    char a;
    short b;
  } s{3, -300};
  struct Large {
    double d[9];
    int n;
  } l{{1, 2, 3, 4, 5, 6, 7, 8, 9}, 1000};
  std::vector<int> index(16);
  for (int t = 0; t < 16; ++t) index[t] = t * 5 + 2;
  std::vector<double> out(16);
  k({1}, {16}, 0, out.data(), s, l, true, static_cast<unsigned char>(200), 0.5f, index.data());
  for (int t = 0; t < 16; ++t) {
    const double own = index[t] % 9 == t % 9 ? -1 : l.d[index[t] % 9];
    CHECK(out[t] == l.d[index[15 - t] % 9] + own + 3 - 300 + 1000 + 200 + 0.5);
  }
}

TEST_CASE("__constant__ and __device__ variables belong to the module", "[host][memory]") {
  const std::string text = R"(
    __constant__ int table[4] = {10, 20, 30, 40};
    __device__ int counter = 5;
    __global__ void k(int* out) { out[threadIdx.x] = table[threadIdx.x % 4]; if (threadIdx.x == 0) out[4] = atomicAdd(&counter, 1); })";
  const Binary binary = compile(text, "k");
  const auto workers = kiln::runtime::HostWorkers::create();
  const HostModule first = HostModule::load(binary, workers),
                   second = HostModule::load(binary, workers);
  std::vector<int> out(5);
  int* p = out.data();
  void* arguments[] = {&p};
  for (int expected : {5, 6}) {
    first.launch({1}, {4}, 0, arguments);
    CHECK(out == std::vector<int>{10, 20, 30, 40, expected});
  }
  second.launch({1}, {4}, 0, arguments);
  CHECK(out[4] == 5);
}

TEST_CASE("vector types, cache hints, asynchronous copies", "[host][memory]") {
  Kernel k(R"(
    #include <cuda_pipeline.h>
    #include <cstdint>
    #include <type_traits>
    __global__ void k(float4* out, const float4* in, int n) {
      __shared__ float4 s[32];
      static_assert(std::is_same_v<std::remove_cv_t<const uint8_t>, unsigned char>);
      const int t = threadIdx.x, i = blockIdx.x * 32 + t;
      __pipeline_memcpy_async(&s[t], &in[i < n ? i : 0], sizeof(float4), i < n ? 0 : 16);
      __pipeline_commit();
      __pipeline_wait_prior(0);
      __syncthreads();
      float4 v = s[31 - t];
      const float4 w = __ldg(in);
      __stcs(&out[i], make_float4(v.w + w.x, v.z, v.y, v.x));
    })",
           "k");
  const int n = 70;
  std::vector<float> in(4 * n), out(4 * 96);
  for (int i = 0; i < 4 * n; ++i) in[i] = i + 1;
  k({3}, {32}, 0, out.data(), in.data(), n);
  for (int i = 0; i < 96; ++i) {
    const int from = i / 32 * 32 + 31 - i % 32;
    for (int c = 0; c < 4; ++c) {
      const float v = from < n ? in[4 * from + 3 - c] : 0;
      CHECK(out[4 * i + c] == v + (c == 0 ? in[0] : 0));
    }
  }
}

TEST_CASE("a failed assert and a trap are errors", "[host][fault]") {
  Kernel k(
      "#include <cassert>\n__global__ void k(int* p, int n) { assert(n < 3); if (n == 2) __trap(); "
      "p[0] = n; }",
      "k");
  int out = -1;
  k({1}, {1}, 0, &out, 1);
  CHECK(out == 1);
  CHECK_THROWS_WITH(k({1}, {1}, 0, &out, 7),
                    contains("assertion failed: n < 3") && contains("test.cu:2"));
  CHECK_THROWS_WITH(k({4}, {33}, 0, &out, 2), contains("__trap"));
}

TEST_CASE("launch limits", "[host][launch]") {
  Kernel k(
      "__global__ void __launch_bounds__(128, 2) k(int* p) { __shared__ int s[100]; s[threadIdx.x "
      "% 100] = 1; p[0] = s[0]; }",
      "k");
  int out = 0;
  CHECK_THROWS_WITH(k({1}, {129}, 0, &out), contains("at most 128"));
  CHECK_THROWS_AS(k({0}, {1}, 0, &out), kiln::UserError);
  CHECK_THROWS_AS(k({1}, {1, 0}, 0, &out), kiln::UserError);
  CHECK_THROWS_WITH(k({1}, {1}, 1 << 20, &out), contains("shared memory"));
}

TEST_CASE("a thread's accesses keep their order, also where they are made wide", "[host][memory]") {
  Kernel k(R"(
    __global__ void k(int* out, int* p, const int* where) {
      const int t = blockIdx.x * blockDim.x + threadIdx.x;
      const int a = p[2 * t];
      p[where[t]] = a + 1000;
      const int b = p[2 * t + 1];  // which may have been written just now
      out[t] = a + b;
    })",
           "k");
  const int n = 256;
  std::vector<int> out(n), p(2 * n), where(n);
  for (int i = 0; i < 2 * n; ++i) p[i] = i;
  for (int t = 0; t < n; ++t) where[t] = t % 3 == 0 ? 2 * t : 2 * t + 1;
  k({2}, {128}, 0, out.data(), p.data(), where.data());
  for (int t = 0; t < n; ++t) REQUIRE(out[t] == 2 * t + (t % 3 == 0 ? 2 * t + 1 : 2 * t + 1000));
}
