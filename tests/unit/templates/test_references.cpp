// The references, which verify everything else, against plain loops.
#include <cmath>
#include <vector>

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

TEMPLATE_TEST_CASE("gemm's reference adds in double", "[templates]", float, kiln::float16,
                   kiln::bfloat16, kiln::float8_e4m3) {
  using T = TestType;
  // A large product, small ones that a sum in float would lose beside it, and minus the large one.
  constexpr int kDepth = 1500;
  constexpr bool kNarrow = sizeof(T) == 1;
  const float large = kNarrow ? 448 : 4096, small = kNarrow ? 1.0f / 512 : 1.0f / 1024;
  std::vector<T> a(kDepth, T(small)), b(kDepth, T(small));
  for (const std::size_t l : {0, 1, kDepth - 1}) a[l] = b[l] = T(large);
  a[1] = T(0.0f);
  a[kDepth - 1] = T(-large);
  float got = 0;
  gemm_sums<T>(GemmTranspose::nt,
               gemm_shape<GemmTranspose::nt>(GemmProblem{1, 1, kDepth}).general(), a.data(),
               b.data(), [&](const float* sums, int, int, int, int count) {
                 REQUIRE(count == 1);
                 got = sums[0];
               });
  CHECK(got == (kDepth - 3) * small * small);
}

TEST_CASE("each shipped kernel says how large the norm of its error may be", "[templates]") {
  const kiln::Registry registry = kiln::shipped_kernels();
  for (const auto& registered : registry.kernels())
    for (const std::string& type : registered.types) {
      const kiln::KernelDefinition kernel = registered.make(type);
      INFO(kernel.name << " " << type);
      const kiln::Tolerance& t = kernel.tolerance;
      const bool same_bits = t.relative == 0 && t.absolute == 0 && !kernel.check;
      CHECK((t.norm > 0 || same_bits));
      // That of sums of 8-bit floats that are added fast is the largest.
      CHECK(t.norm < 0.07);
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
  // Rows of 2, gate and up: relu({3, 4}) * {0, 0} and relu({-1, 1}) * {2, 3}.
  const float pairs[] = {3, 4, 0, 0, -1, 1, 2, 3};
  float gated[4];
  gated_activation_kernel<float, kiln::epilogue::Relu>().reference(gated, pairs, 2, 2);
  const float activated[] = {0, 0, 0, 3};
  for (int i = 0; i < 4; ++i) CHECK(gated[i] == activated[i]);
  gated_activation_kernel<float, kiln::epilogue::Silu>().reference(gated, pairs, 2, 2);
  CHECK(gated[2] == Approx(-2 / (1 + std::exp(1.0))));
  CHECK(gated[3] == Approx(3 / (1 + std::exp(-1.0))));
  vector_add_kernel<float>().reference(sum, x, w, 4);
  CHECK(sum[0] == 4.0f);
  CHECK(sum[3] == -1.0f);
}

TEST_CASE("references of the kernels over rows, on values worked out by hand", "[templates]") {
  const float third = std::log(3.0f);
  const float x[] = {0, third, 5, 5};
  float y[4], loss[3];
  softmax_kernel<float>().reference(y, x, 2, 2);
  const float weights[] = {0.25f, 0.75f, 0.5f, 0.5f};
  for (int i = 0; i < 4; ++i) CHECK(y[i] == Approx(weights[i]));
  const float logits[] = {0, third, 5, 5, 7, 7};
  const int labels[] = {1, -9, 2};
  cross_entropy_kernel<float>().reference(loss, logits, labels, 3, 2, -9);
  CHECK(loss[0] == Approx(std::log(4.0f / 3)));
  CHECK(loss[1] == 0);
  CHECK(std::isnan(loss[2]));

  const float rows[] = {1, 3, 10, 10}, w[] = {2, 4}, b[] = {0.5f, -1};
  layernorm_kernel<float>().reference(y, rows, w, b, 2, 2, 3.0f);
  // Deviations of -1 and 1, a variance of 1, so a scale of 1/2.
  const float standardized[] = {-0.5f, 1, 0.5f, -1};
  for (int i = 0; i < 4; ++i) CHECK(y[i] == Approx(standardized[i]));

  float residual[] = {1, 1, 0, 0};
  const float added[] = {2, 3, 0, 0};
  rmsnorm_residual_kernel<float>().reference(y, residual, added, w, 2, 2, 0.0f);
  CHECK((residual[0] == 3 && residual[1] == 4 && residual[2] == 0));
  CHECK(y[0] == Approx(3 * 2 / std::sqrt(12.5)));
  CHECK(y[1] == Approx(4 * 4 / std::sqrt(12.5)));
}

TEST_CASE("the reference of sort_by_expert, on values worked out by hand", "[templates]") {
  // Four tokens, two choices of each among three experts; expert 0 gets none, and three are
  // dropped.
  const int choices[] = {2, 1, 1, -1, 3, 2, -7, 2};
  int ends[3], tokens[8], places[8];
  sort_by_expert_kernel().reference(ends, tokens, places, choices, 4, 2, 3);
  const int want_tokens[] = {0, 1, 0, 2, 3, -1, -1, -1},
            want_places[] = {2, 0, 1, -1, -1, 3, -1, 4};
  CHECK((ends[0] == 0 && ends[1] == 2 && ends[2] == 5));
  for (int i = 0; i < 8; ++i) {
    CHECK(tokens[i] == want_tokens[i]);
    CHECK(places[i] == want_places[i]);
  }
}

TEST_CASE("rope's reference, on values worked out by hand", "[templates]") {
  // Positions 0 and 1, of two angles each: cosines, then sines.
  const float table[] = {1, 1, 0, 0, 0, 0.6f, 1, 0.8f};
  const std::int64_t positions[] = {1}, slots[] = {3};
  const float q[] = {1, 2, 3, 4, 9}, k[] = {5, 0, 0, 10, 7}, v[] = {1, 2, 3, 4, 5};
  float q_out[5], k_out[5];
  const auto equal = [](const float* got, std::vector<float> want) {
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i] == Approx(want[i]).margin(1e-6));
  };
  rope_kernel<float>().reference(q_out, k_out, q, k, table, positions, 1, 1, 1, 5, 4, 2, 5L, 5L, 5L,
                                 5L);
  equal(q_out, {-3, 1.2f - 3.2f, 1, 2.4f + 1.6f, 9});
  equal(k_out, {0, -8, 5, 6, 7});
  rope_kernel<float>(RopeOrder::interleaved)
      .reference(q_out, k_out, q, k, table, positions, 1, 1, 1, 5, 4, 2, 5L, 5L, 5L, 5L);
  equal(q_out, {-2, 1, 1.8f - 3.2f, 2.4f + 2.4f, 9});
  equal(k_out, {0, 5, -8, 6, 7});
  // Means of squares of 9/16 and 36, so scales of 4/3 and 1/6.
  const float small[] = {1.5f, 0, 0, 0}, large[] = {0, 0, 0, 12};
  const float q_weight[] = {1, 5, 5, 5}, k_weight[] = {5, 5, 5, 2};
  float k_cache[20] = {}, v_cache[20] = {};
  rope_norm_paged_kernel<float>().reference(q_out, k_cache, v_cache, small, large, v, table,
                                            positions, slots, 1, 1, 1, 4, 4, 2, 2, 2, 10L, 4L, 4L,
                                            4L, 5L, q_weight, k_weight, 0.0f);
  equal(q_out, {0, 0, 2, 0});
  // Slot 3 is place 1 of block 1, which begins at 10.
  equal(k_cache + 14, {0, -3.2f, 0, 2.4f});
  equal(v_cache + 14, {1, 2, 3, 4});
  CHECK((k_cache[13] == 0 && k_cache[18] == 0 && v_cache[13] == 0 && v_cache[18] == 0));
}

TEST_CASE("the middle of an MLP as 8-bit floats is what a GEMM of them reads", "[templates]") {
  using kiln::float8_e4m3;
  constexpr int kRows = 3, kHidden = 256, kColumns = 5;
  // Rows of 2 * kHidden: gates are 1 and -1 in turn. Each row and block has magnitudes of its own.
  std::vector<float> x(kRows * 2 * kHidden, 1.0f), scales(2 * 4), product(kRows * kHidden);
  for (int r = 0; r < kRows; ++r)
    for (int h = 0; h < kHidden; ++h) {
      float* const gate = x.data() + r * 2 * kHidden + h;
      gate[0] = h % 2 == 0 ? 1.0f : -1.0f;
      gate[kHidden] = std::ldexp(static_cast<float>(1 + (r + h) % 13), h / 128 * 8 - 3 * r);
      product[static_cast<std::size_t>(r * kHidden + h)] = h % 2 == 0 ? gate[kHidden] : 0;
    }
  std::vector<float8_e4m3> q(product.size()), b;
  for (int i = 0; i < kColumns * kHidden; ++i) b.emplace_back(static_cast<float>(i % 5 - 2) / 2);
  gated_fp8_blocks_kernel<float, kiln::epilogue::Relu>().reference(q.data(), scales.data(),
                                                                   x.data(), kRows, kHidden);
  std::vector<kiln::bfloat16> c(kRows * kColumns);
  const std::vector<float> ones(2, 1.0f);
  gemm_fp8_block_kernel<>().reference(c.data(), q.data(), b.data(), kRows, kColumns, kHidden,
                                      scales.data(), ones.data());
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < kColumns; ++j) {
      double sum = 0, magnitudes = 0;
      for (int h = 0; h < kHidden; ++h) {
        const double term =
            static_cast<double>(product[static_cast<std::size_t>(r * kHidden + h)]) *
            static_cast<double>(static_cast<float>(b[static_cast<std::size_t>(j * kHidden + h)]));
        sum += term;
        magnitudes += std::abs(term);
      }
      const auto got = static_cast<float>(c[static_cast<std::size_t>(r * kColumns + j)]);
      CHECK(std::abs(static_cast<double>(got) - sum) <= magnitudes / 16);
      CHECK(magnitudes > 0);
    }
}

TEST_CASE("references of 8-bit floats, on values worked out by hand", "[templates]") {
  using kiln::float8_e4m3;
  std::vector<float> x(2 * 130, 1.0f), scales(2 * 4, -1.0f);
  x[0] = -896, x[129] = 224, x[130] = 448;
  std::vector<float8_e4m3> q(x.size());
  const auto at = [&](int r, int h) {
    return static_cast<float>(q[static_cast<std::size_t>(r * 130 + h)]);
  };
  quantize_rows_kernel<float>().reference(q.data(), scales.data(), x.data(), 2, 130);
  CHECK((scales[0] == 2 && scales[1] == 1 && scales[2] == -1));
  CHECK((at(0, 0) == -448 && at(0, 1) == 0.5f && at(0, 129) == 112 && at(1, 0) == 448));

  // [block][row], rows padded to 4.
  quantize_blocks_kernel<float>().reference(q.data(), scales.data(), x.data(), 2, 130);
  CHECK((scales[0] == 2 && scales[1] == 1 && scales[2] == -1 && scales[3] == -1));
  CHECK((scales[4] == 0.5f && scales[5] == 1.0f / 448 && scales[6] == -1));
  CHECK((at(0, 0) == -448 && at(0, 129) == 448 && at(0, 128) == 2 && at(1, 129) == 448));

  const float scale = 4;
  quantize_tensor_kernel<float>().reference(q.data(), x.data(), &scale, 2, 130);
  CHECK((at(0, 0) == -224 && at(0, 1) == 0.25f && at(0, 129) == 56));

  const float row[] = {4, 4}, w[] = {1, -2};
  rmsnorm_fp8_kernel<float>().reference(q.data(), scales.data(), row, w, 1, 2, 0.0f);
  CHECK(scales[0] == Approx(2.0f / 448));
  CHECK((static_cast<float>(q[0]) == 224 && static_cast<float>(q[1]) == -448));
}

TEST_CASE("what lies between two e4m3 numbers may become either, if it is not much of a row",
          "[templates]") {
  using Fp8 = kiln::float8_e4m3;
  constexpr int kHidden = 4096;
  const kiln::KernelDefinition kernel = rmsnorm_fp8_kernel<float>().definition();
  const auto verdict = [&](std::size_t count, float value) {
    std::vector<Fp8> right(kHidden, Fp8(16.0f)), got = right;
    for (std::size_t i = 0; i < count; ++i) got[i * 7 % kHidden] = Fp8(value);
    int rows = 1, hidden = kHidden;
    float scale = 0.5f, eps = 1e-5f;
    void* of_got[] = {got.data(), &scale, nullptr, nullptr, &rows, &hidden, &eps};
    void* expected[] = {right.data(), &scale, nullptr, nullptr, &rows, &hidden, &eps};
    return kernel.check(kiln::Values{1, kHidden}, of_got, expected);
  };
  CHECK(verdict(0, 16).empty());
  CHECK(verdict(kHidden / 64, 18).empty());
  CHECK_THAT(verdict(kHidden / 4, 18), Catch::Contains("are rounded to a neighbour"));
  CHECK_THAT(verdict(1, 20), Catch::Contains("is 20, not 16"));
}
