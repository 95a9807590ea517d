#include "host_test.hpp"

using namespace host_test;

TEST_CASE("vector_add", "[host]") {
  Kernel add(R"(
    struct Config { int items; };
    template <Config c, class T>
    __global__ void __launch_bounds__(256) add(T* out, const T* a, const T* b, int n) {
      for (int i = 0; i < c.items; ++i) {
        const int at = (blockIdx.x * c.items + i) * blockDim.x + threadIdx.x;
        if (at < n) out[at] = a[at] + b[at];
      }
    })",
             "add<Config{.items = 4}, float>");
  const int n = 100003;
  std::vector<float> a(n), b(n), out(n + 1, -1.0f);
  for (int i = 0; i < n; ++i) a[i] = 0.5f * i, b[i] = 3.0f - i;
  add({(n + 1023) / 1024}, {256}, 0, out.data(), a.data(), b.data(), n);
  for (int i = 0; i < n; ++i) REQUIRE(out[i] == a[i] + b[i]);
  CHECK(out[n] == -1.0f);
  CHECK(add.module().kernel().max_threads == 256);
  CHECK(add.module().kernel().parameter_count == 4);
}

TEST_CASE("arguments that only some threads read", "[host]") {
  Kernel k(R"(
    struct Many { short first; int list[3]; double scale; };
    __global__ void k(double* out, const int* in, Many many, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) {
        int v = in[i];
        if (v & 1) v += many.list[2];
        else if (v & 2) v -= many.list[i % 2];
        out[i] = v * many.scale + many.first;
      }
    })",
           "k");
  struct Many {
    short first;
    int list[3];
    double scale;
  };
  const Many many{-7, {100, 200, 300}, 0.5};
  for (int n : {0, 1, 63, 100}) {
    std::vector<int> in(128);
    std::vector<double> out(128, -1), expected(128, -1);
    for (int i = 0; i < 128; ++i) in[i] = i * 3;
    for (int i = 0; i < n; ++i) {
      const int v = in[i];
      const int changed = v & 1 ? v + 300 : v & 2 ? v - many.list[i % 2] : v;
      expected[i] = changed * 0.5 - 7;
    }
    k({2}, {64}, 0, out.data(), in.data(), many, n);
    CHECK(out == expected);
  }
}
