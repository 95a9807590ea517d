// CUDA's C++ library on the host target, and what is said of headers that it lacks.
#include <cmath>
#include <complex>
#include <fstream>
#include <limits>
#include <sstream>

#include "host_test.hpp"
#include "library_kernels.hpp"

using namespace host_test;

TEST_CASE("cuda::std and the constants of CUDA", "[host][library]") {
  const Kernel k(kiln_test::kStandardKernel, "standard");
  const float a = 1.25f, b = -0.5f, c = 3, d = 2;
  const std::vector<float> in = {a, b, c, d};
  std::vector<float> out(20, -1);
  k({1}, {1}, 0, out.data(), in.data());

  const std::complex<float> z(a, b), w(c, d), quotient = z / w, root = std::sqrt(z);
  const auto near = [](float value) { return Approx(value).epsilon(1e-6); };
  CHECK(out[0] == (z * w).real());
  CHECK(out[1] == (z * w).imag());
  CHECK(out[2] == near(quotient.real()));
  CHECK(out[3] == near(quotient.imag()));
  CHECK(out[4] == near(root.real()));
  CHECK(out[5] == near(root.imag()));
  CHECK(out[6] == near(std::exp(w).real()));
  CHECK(out[7] == near(std::abs(z) + std::norm(w) - std::arg(z)));
  CHECK(out[8] == a + b + c + d + a - d);
  CHECK(out[9] == a * 8 + b + b);
  CHECK(out[10] == a + 8);
  CHECK(out[11] == a * 8 - b);
  CHECK(out[12] == c * c + 2 + 1.5f + 3.5f);
  CHECK(out[13] == d * 2 + b + (a + 1) + 1);
  CHECK(out[14] == a - b + 1);
  CHECK(out[15] == a + 3 + 1);
  CHECK(out[16] == c + 5);
  CHECK(out[17] == 3.14159274f);
  CHECK(out[18] == std::numeric_limits<float>::infinity());
  CHECK(out[19] == 3.14159274f);
}

TEST_CASE("complex numbers with infinities are those of the C standard", "[host][library]") {
  const Kernel k(R"(
    #include <cuda/std/complex>
    __global__ void k(float* out, float inf, float nan, float zero) {
      using C = cuda::std::complex<float>;
      const C products[] = {C(inf, nan) * C(1, 1), C(inf, inf) * C(1, 0), C(1, 1) / C(zero, zero),
                            C(inf, 1) / C(2, 1), C(1, 2) / C(inf, 1)};
      for (int i = 0; i < 5; ++i) out[2 * i] = products[i].real(), out[2 * i + 1] = products[i].imag();
    })",
                 "k");
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> out(10);
  k({1}, {1}, 0, out.data(), inf, std::numeric_limits<float>::quiet_NaN(), 0.0f);
  CHECK(out == std::vector<float>{inf, inf, inf, inf, inf, inf, inf, -inf, 0, 0});
}

TEST_CASE("algorithms", "[host][library]") {
  const Kernel k(R"(
    #include <cuda/std/algorithm>
    #include <cuda/std/array>
    __global__ void k(int* out) {
      namespace cs = cuda::std;
      cs::array<int, 8> a{5, 3, 8, 1, 9, 2, 7, 7};
      *out++ = *cs::min_element(a.begin(), a.end()) + 10 * *cs::max_element(a.begin(), a.end());
      *out++ = cs::find(a.begin(), a.end(), 9) - a.begin();
      *out++ = cs::count(a.begin(), a.end(), 7);
      *out++ = cs::any_of(a.begin(), a.end(), [](int v) { return v > 8; }) +
               2 * cs::all_of(a.begin(), a.end(), [](int v) { return v > 1; });
      cs::reverse(a.begin(), a.end());
      *out++ = a[0] * 100 + a[3];
      const int sorted[] = {1, 3, 3, 5, 9};
      *out++ = (cs::lower_bound(sorted, sorted + 5, 3) - sorted) +
               10 * (cs::upper_bound(sorted, sorted + 5, 3) - sorted) +
               100 * cs::binary_search(sorted, sorted + 5, 4);
      *out++ = cs::clamp(12, 0, 10) + cs::clamp(-3, 0, 10) + cs::clamp(5, 0, 10);
      cs::fill(a.begin(), a.end(), 4);
      *out++ = cs::equal(a.begin(), a.end(), sorted) + a[7];
    })",
                 "k");
  std::vector<int> out(8);
  k({1}, {1}, 0, out.data());
  CHECK(out == std::vector<int>{91, 4, 2, 1, 709, 31, 15, 4});
}

TEST_CASE("intrinsics that NVRTC compiles, the host target compiles", "[host][library]") {
  CHECK_FALSE(compile(kiln_test::kIntrinsicsKernel, "intrinsics").code.empty());
}

TEST_CASE("a header of CUDA's that is not there is named, with what to do", "[host][library]") {
  const auto words = [](const std::string& header) {
    return refusal(
        source_of("#include <" + header + ">\n__global__ void k(int* p) { p[0] = 1; }", "k"));
  };
  for (const char* header :
       {"mma.h", "cuda_fp6.h", "cuComplex.h", "cuda/atomic", "cuda/barrier", "cuda/std/optional",
        "cuda/ptx", "cub/cub.cuh", "thrust/sort.h", "curand_kernel.h"}) {
    CAPTURE(header);
    CHECK_THAT(words(header),
               contains(std::string("test.cu: note: the host target has no ") + header + ": ") &&
                   contains("docs/headers.md"));
  }
  CHECK_THAT(words("mma.h"), contains("KILN_HOST_TARGET"));
  CHECK_THAT(words("my_own.cuh"), !contains("the host target has no"));
  CHECK_THAT(words("cuda/my_own.cuh"), !contains("the host target has no"));
  // __has_include tells the truth.
  Kernel k(R"(
    #if __has_include(<mma.h>)
    #include <mma.h>
    #endif
    #if __has_include(<cooperative_groups.h>)
    #include <cooperative_groups.h>
    #endif
    __global__ void k(unsigned* p) { p[0] = cooperative_groups::this_thread_block().size(); })",
           "k");
  unsigned size = 0;
  k({1}, {3}, 0, &size);
  CHECK(size == 3);
}

TEST_CASE("docs/headers.md lists every header that the host target has", "[host][library]") {
  std::ifstream file(KILN_HEADERS_PAGE);
  std::stringstream page;
  page << file.rdbuf();
  for (const std::string& header : compiler().includes(kiln::Target::this_host()).builtin_headers) {
    if (header.find("kiln_") != std::string::npos) continue;
    CAPTURE(header);
    CHECK(page.str().find("`" + header + "`") != std::string::npos);
  }
}
