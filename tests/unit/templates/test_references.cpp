// The references, which verify everything else, against plain loops.
#include <cmath>

#include "kiln/registry.hpp"
#include "template_test.hpp"

using namespace kiln::templates;
using template_test::Array;

TEMPLATE_TEST_CASE("gemm's reference is the equation", "[templates]", float, kiln::float16,
                   kiln::bfloat16) {
  using T = TestType;
  const auto reference = gemm_kernel<T>().reference;
  for (const auto& [m, n, k] :
       std::vector<std::array<int, 3>>{{1, 1, 1}, {5, 19, 37}, {16, 33, 64}, {7, 40, 0}}) {
    INFO("m=" << m << " n=" << n << " k=" << k);
    Array<T> c(m * n), a(m * k), b(n * k);
    a.integers(3, 5);
    b.integers(3, 6);
    reference(c.data(), a.data(), b.data(), m, n, k);
    CHECK(c.margins_intact());
    int wrong = 0;
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        double sum = 0;
        for (int l = 0; l < k; ++l)
          sum += static_cast<double>(static_cast<float>(a[i * k + l])) *
                 static_cast<double>(static_cast<float>(b[j * k + l]));
        if (static_cast<float>(c[i * n + j]) != static_cast<float>(T(static_cast<float>(sum))))
          ++wrong;
      }
    CHECK(wrong == 0);
  }
}

TEST_CASE("the other references, on values worked out by hand", "[templates]") {
  float x[] = {3, 4, 0, 0, 1, 1, 1, 1}, w[] = {1, 2, 3, -1}, y[8];
  rmsnorm_kernel<float>().reference(y, x, w, 2, 4, 0.0f);
  // mean(x[0]^2) = 25 / 4, so the scale is 0.4; of x[1] it is 1.
  const float want[] = {1.2f, 3.2f, 0, 0, 1, 2, 3, -1};
  for (int i = 0; i < 8; ++i) CHECK(y[i] == Approx(want[i]).margin(1e-7));

  float sum[8];
  residual_add_kernel<float>().reference(sum, x, want, 2, 4);
  for (int i = 0; i < 8; ++i) CHECK(sum[i] == x[i] + want[i]);
  vector_add_kernel<float>().reference(sum, x, w, 4);
  CHECK(sum[0] == 4.0f);
  CHECK(sum[3] == -1.0f);
}
