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
