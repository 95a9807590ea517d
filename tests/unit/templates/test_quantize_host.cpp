// 8-bit floats with scales, on the host target: quantize_rows, quantize_blocks, quantize_tensor and
// rmsnorm_fp8.
#include <cmath>
#include <cstring>
#include <limits>

#include "row_test.hpp"

using namespace kiln::templates;
using kiln::float8_e4m3;
using template_test::Array;
using template_test::HostInstance;
using template_test::kInfinity;
using template_test::kNan;
using template_test::kShapes;
using template_test::RowShape;

namespace {

template <class T>
bool same(Array<T>& got, Array<T>& want) {
  return got.margins_intact() && std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0;
}

/// quantize_rows or quantize_blocks. Both arrays of scales begin poisoned, so that padding which is
/// written differs.
template <class T, class Kernel>
void check_scaling(const Kernel& kernel, const RowConfig& config) {
  const HostInstance<Kernel> quantize(kernel, config);
  for (const RowShape& s : kShapes) {
    INFO(kernel.name << " " << s.describe() << " " << template_test::describe(config));
    Array<T> x(s.elements(), s.x_offset);
    x.reals(11);
    Array<float8_e4m3> q(s.elements(), s.y_offset), want(s.elements());
    Array<float> scales(s.scales()), want_scales(s.scales());
    quantize({s.rows, s.width}, q.data(), scales.data(), static_cast<const T*>(x.data()), s.rows,
             s.width);
    kernel.reference(want.data(), want_scales.data(), x.data(), s.rows, s.width);
    CHECK(same(q, want));
    CHECK(same(scales, want_scales));
  }
}

template <class T>
void check_tensor(const RowConfig& config) {
  const auto kernel = quantize_tensor_kernel<T>();
  const HostInstance<QuantizeTensorKernel<T>> quantize(kernel, config);
  for (const RowShape& s : kShapes)
    for (const float scale : {1.0f / 300, 60.0f}) {  // some are beyond 448, some are subnormal
      INFO(s.describe() << " " << template_test::describe(config) << " scale " << scale);
      Array<T> x(s.elements(), s.x_offset);
      x.reals(12);
      Array<float8_e4m3> q(s.elements(), s.y_offset), want(s.elements());
      quantize({s.rows, s.width}, q.data(), static_cast<const T*>(x.data()), &scale, s.rows,
               s.width);
      kernel.reference(want.data(), x.data(), &scale, s.rows, s.width);
      CHECK(same(q, want));
    }
}

template <class T>
void check_rmsnorm_fp8(const RowConfig& config) {
  const auto kernel = rmsnorm_fp8_kernel<T>();
  const HostInstance<RmsNormFp8Kernel<T>> norm(kernel, config);
  for (const RowShape& s : kShapes) {
    INFO(s.describe() << " " << template_test::describe(config));
    Array<T> x(s.elements(), s.x_offset), w(static_cast<std::size_t>(s.width), s.x_offset);
    x.reals(13);
    w.reals(14);
    Array<float8_e4m3> q(s.elements(), s.y_offset), want(s.elements());
    Array<float> scales(static_cast<std::size_t>(s.rows)), want_scales(scales.size());
    const T *from = x.data(), *weights = w.data();
    norm({s.rows, s.width}, q.data(), scales.data(), from, weights, s.rows, s.width, 1e-5f);
    kernel.reference(want.data(), want_scales.data(), from, weights, s.rows, s.width, 1e-5f);
    const auto check = [&] {
      return kernel.check({s.rows, s.width},
                          {q.data(), scales.data(), from, weights, s.rows, s.width, 1e-5f},
                          {want.data(), want_scales.data(), from, weights, s.rows, s.width, 1e-5f});
    };
    CHECK(check() == "");
    CHECK((q.margins_intact() && scales.margins_intact()));
    // What is judged is every scale and every element.
    const float scale = scales[scales.size() - 1];
    scales[scales.size() - 1] = 1.001f * scale;
    CHECK(check().find("scales[") == 0);
    scales[scales.size() - 1] = scale;
    q[q.size() - 1].bits ^= 0x08;
    CHECK(check().find("q[") == 0);
  }
}

/// 4 x 300: a row of zeros, one with a NaN, one with an infinity, and one of subnormals.
struct Extremes {
  static constexpr int kRows = 4, kWidth = 300;
  std::vector<float> x = std::vector<float>(kRows * kWidth, 0.0f);

  Extremes() {
    for (int h = 0; h < kWidth; ++h) {
      at(1, h) = at(2, h) = static_cast<float>(h % 7) - 3;
      at(3, h) = h % 2 ? 1e-41f : -3e-42f;
    }
    at(1, 5) = kNan;
    at(2, 290) = -kInfinity;
  }
  float& at(int r, int h) { return x[static_cast<std::size_t>(r * kWidth + h)]; }
};

}  // namespace

TEMPLATE_TEST_CASE("quantizing rows and blocks: the same bits for all lengths and alignments",
                   "[templates][host]", float, kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (const RowConfig& config :
       template_test::row_configs<TestType>(quantize_rows_kernel<TestType>()))
    if (!config.online) check_scaling<TestType>(quantize_rows_kernel<TestType>(), config);
  constexpr int kWidest = 16 / sizeof(TestType);
  for (const RowConfig& config :
       {quantize_blocks_kernel<TestType>().space.default_config(),
        RowConfig{32, 1, kWidest, 8, false, false}, RowConfig{64, 1, 4, 1, false, false}})
    check_scaling<TestType>(quantize_blocks_kernel<TestType>(), config);
}

TEMPLATE_TEST_CASE("quantizing with a given scale: the same bits for all lengths and alignments",
                   "[templates][host]", float, kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  constexpr int kWidest = 16 / sizeof(TestType);
  for (const RowConfig& config :
       {quantize_tensor_kernel<TestType>().space.default_config(),
        RowConfig{32, 1, kWidest, 8, false, false}, RowConfig{64, 1, 2, 1, false, false}})
    check_tensor<TestType>(config);
}

TEMPLATE_TEST_CASE("rmsnorm_fp8: all lengths, alignments and ways", "[templates][host]", float,
                   kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (const RowConfig& config :
       template_test::row_configs<TestType>(rmsnorm_fp8_kernel<TestType>()))
    if (!config.online) check_rmsnorm_fp8<TestType>(config);
}

TEST_CASE("8-bit floats: zeros, NaNs, infinities and subnormals, by row and by block",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  Extremes extremes;
  constexpr int kRows = Extremes::kRows, kWidth = Extremes::kWidth;
  constexpr float kLeast = std::numeric_limits<float>::min();
  const float* const x = extremes.x.data();
  const auto number = [](float8_e4m3 v) { return static_cast<float>(v); };
  std::vector<float8_e4m3> q(kRows * kWidth);
  const auto at = [&](int r, int h) { return number(q[static_cast<std::size_t>(r * kWidth + h)]); };
  std::vector<float> scales(3 * kRows);

  HostInstance<QuantizeRowsKernel<float>>(
      quantize_rows_kernel<float>(), {128, 1, 4, 1, false, false})({kRows, kWidth}, q.data(),
                                                                   scales.data(), x, kRows, kWidth);
  CHECK((scales[0] == kLeast && at(0, 0) == 0 && at(0, kWidth - 1) == 0));
  CHECK((scales[1] == 3.0f / 448 && std::isnan(at(1, 5)) && at(1, 0) == -448 && at(1, 6) == 448));
  CHECK((scales[2] == kInfinity && std::isnan(at(2, 290)) && at(2, 0) == 0));
  CHECK((scales[3] == kLeast && at(3, 0) == 0));  // far below what the least scale resolves

  HostInstance<QuantizeBlocksKernel<float>>(quantize_blocks_kernel<float>(),
                                            {32, 1, 4, 2, false, false})(
      {kRows, kWidth}, q.data(), scales.data(), x, kRows, kWidth);
  // [block][row]: only the block with the infinity has its scale.
  CHECK((scales[2] == 3.0f / 448 && scales[4 + 2] == 3.0f / 448 && scales[8 + 2] == kInfinity));
  CHECK((at(2, 0) == -448 && at(2, 255) == Approx(0) && at(2, 257) == 0 && std::isnan(at(2, 290))));
  CHECK((scales[1] == 3.0f / 448 && std::isnan(at(1, 5)) && at(1, 6) == 448));

  const std::vector<float> w(kWidth, 1.0f);
  HostInstance<RmsNormFp8Kernel<float>>(rmsnorm_fp8_kernel<float>(), {128, 4, 4, 4, false, false})(
      {kRows, kWidth}, q.data(), scales.data(), x, w.data(), kRows, kWidth, 1e-5f);
  CHECK((scales[0] == kLeast && at(0, 7) == 0));
  CHECK((std::isnan(at(1, 0)) && std::isnan(at(1, kWidth - 1))));
  CHECK((std::isnan(at(2, 290)) && at(2, 0) == 0));
}
