// The middle of a gated MLP as 8-bit floats, on the host target: gated_fp8_rows, gated_fp8_blocks
// and gated_fp8_tensor.
#include <cmath>
#include <cstring>

#include "row_test.hpp"

using namespace kiln::templates;
using kiln::float8_e4m3;
using kiln::epilogue::Gelu;
using kiln::epilogue::GeluTanh;
using kiln::epilogue::Relu;
using kiln::epilogue::Silu;
using template_test::Array;
using template_test::HostInstance;
using template_test::kInfinity;
using template_test::kNan;
using template_test::kShapes;
using template_test::RowShape;

namespace {

/// Changes what a kernel has computed in one place and calls `check` for the judgement of it.
template <class Check>
void check_judgement(Array<float>& scales, std::size_t scale, Array<float8_e4m3>& q, Check check) {
  CHECK(check() == "");
  const float right = scales[scale];
  scales[scale] = 1.001f * right;
  CHECK(check().find("scales[") == 0);
  scales[scale] = right;
  q[q.size() - 1].bits ^= 0x08;
  CHECK(check().find("q[") == 0);
}

/// gated_fp8_rows, or gated_fp8_blocks with `blocks`. Both arrays of scales begin poisoned alike,
/// so that padding which is written differs.
template <class T, class Kernel>
void check_scaling(const Kernel& kernel, const RowConfig& config, bool blocks) {
  const HostInstance<Kernel> run(kernel, config);
  for (const RowShape& s : kShapes) {
    INFO(kernel.name << " " << s.describe() << " " << template_test::describe(config));
    Array<T> x(2 * s.elements(), s.x_offset);
    x.reals(21);
    Array<float8_e4m3> q(s.elements(), s.y_offset), want(s.elements());
    const auto rows = static_cast<std::size_t>(s.rows);
    const auto leading = blocks ? static_cast<std::size_t>(kiln::scale_leading(s.rows)) : rows;
    Array<float> scales(blocks ? s.scales() : rows), want_scales(scales.size());
    const T* const from = x.data();
    run({s.rows, s.width}, q.data(), scales.data(), from, s.rows, s.width);
    kernel.reference(want.data(), want_scales.data(), from, s.rows, s.width);
    CHECK((q.margins_intact() && scales.margins_intact()));
    int padding = 0;
    for (std::size_t i = 0; i < scales.size(); ++i)
      if (i % leading >= rows)
        padding += std::memcmp(&scales[i], &want_scales[i], sizeof(float)) != 0;
    CHECK(padding == 0);
    check_judgement(scales, scales.size() - leading + rows - 1, q, [&] {
      return kernel.check({s.rows, s.width}, {q.data(), scales.data(), from, s.rows, s.width},
                          {want.data(), want_scales.data(), from, s.rows, s.width});
    });
  }
}

template <class T, class Activation>
void check_tensor(const RowConfig& config) {
  const auto kernel = gated_fp8_tensor_kernel<T, Activation>();
  const HostInstance<GatedFp8TensorKernel<T>> run(kernel, config);
  for (const RowShape& s : kShapes)
    for (const float scale : {1.0f / 3000, 60.0f}) {  // some are beyond 448, some are subnormal
      INFO(s.describe() << " " << template_test::describe(config) << " scale " << scale);
      Array<T> x(2 * s.elements(), s.x_offset);
      x.reals(22);
      Array<float8_e4m3> q(s.elements(), s.y_offset), want(s.elements());
      const T* const from = x.data();
      run({s.rows, s.width}, q.data(), from, &scale, s.rows, s.width);
      kernel.reference(want.data(), from, &scale, s.rows, s.width);
      CHECK(kernel.check({s.rows, s.width}, {q.data(), from, &scale, s.rows, s.width},
                         {want.data(), from, &scale, s.rows, s.width}) == "");
      CHECK(q.margins_intact());
    }
}

/// Against the equation in double.
template <class Activation>
void check_equation(double (*activation)(double)) {
  constexpr int kRows = 3, kHidden = 200;
  const auto kernel = gated_fp8_rows_kernel<float, Activation>();
  Array<float> x(2 * kRows * kHidden);
  x.reals(23);
  std::vector<float8_e4m3> q(kRows * kHidden);
  float scales[kRows];
  const float* const from = x.data();
  HostInstance<GatedFp8Kernel<float>>(kernel, {128, 1, 4, 1, false, false})(
      {kRows, kHidden}, q.data(), scales, from, kRows, kHidden);
  int wrong = 0;
  for (int r = 0; r < kRows; ++r) {
    double most = 0;
    for (int h = 0; h < kHidden; ++h) {
      const double v = activation(from[r * 2 * kHidden + h]) *
                       static_cast<double>(from[r * 2 * kHidden + kHidden + h]);
      most = std::max(most, std::abs(v));
      const double got =
          static_cast<double>(static_cast<float>(q[static_cast<std::size_t>(r * kHidden + h)])) *
          static_cast<double>(scales[r]);
      // Half of the last of 4 bits, or of the least subnormal.
      const double bound = std::abs(v) / 16 + static_cast<double>(scales[r]) / 1024;
      wrong += !(std::abs(got - v) <= 1.0001 * bound);
    }
    wrong += !(std::abs(static_cast<double>(scales[r]) - most / 448) <= 1e-5 * most / 448);
  }
  CHECK(wrong == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("gated activations as 8-bit floats: all lengths and alignments",
                   "[templates][host]", float, kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const auto rows = gated_fp8_rows_kernel<TestType, Silu>();
  for (const RowConfig& config : template_test::row_configs<TestType>(rows))
    if (!config.online) check_scaling<TestType>(rows, config, false);
  constexpr int kWidest = 16 / sizeof(TestType);
  const auto blocks = gated_fp8_blocks_kernel<TestType, GeluTanh>();
  const auto tiles = {blocks.space.default_config(), RowConfig{32, 1, kWidest, 8, false, false},
                      RowConfig{64, 1, 4, 1, false, false}};
  for (const RowConfig& config : tiles) {
    check_scaling<TestType>(blocks, config, true);
    check_tensor<TestType, Silu>(config);
  }
}

TEST_CASE("gated activations as 8-bit floats: the equation of each activation",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  check_equation<Silu>([](double x) { return x / (1 + std::exp(-x)); });
  check_equation<Gelu>([](double x) { return x / 2 * (1 + std::erf(x / std::sqrt(2.0))); });
  check_equation<GeluTanh>([](double x) {
    return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
  });
  check_equation<Relu>([](double x) { return std::max(x, 0.0); });
}

TEST_CASE(
    "gated activations as 8-bit floats: what rounds at another place, or is a thousandth off, "
    "is wrong",
    "[templates]") {
  using kiln::float16;
  constexpr int kRows = 64, kHidden = 4096;
  Array<float16> x(2 * kRows * kHidden);
  x.reals(24);
  const auto kernel = gated_fp8_tensor_kernel<float16, Silu>();
  const float16* const from = x.data();
  const float scale = 1.0f / 300;
  std::vector<float8_e4m3> want(kRows * kHidden), got(want.size());
  kernel.reference(want.data(), from, &scale, kRows, kHidden);
  const auto judged = [&](auto change) {
    for (int i = 0; i < kRows * kHidden; ++i) {
      const float16* const gate = from + i / kHidden * 2 * kHidden + i % kHidden;
      const float v = Silu{}(static_cast<float>(gate[0]), kiln::epilogue::Place{}) *
                      static_cast<float>(gate[kHidden]);
      got[static_cast<std::size_t>(i)] = float8_e4m3(change(v) * (1 / scale));
    }
    return kernel.check({kRows, kHidden}, {got.data(), from, &scale, kRows, kHidden},
                        {want.data(), from, &scale, kRows, kHidden});
  };
  CHECK(judged([](float v) { return v; }) == "");
  CHECK(judged([](float v) { return v * 1.0000005f; }) == "");
  CHECK_THAT(judged([](float v) { return static_cast<float>(float16(v)); }),
             Catch::Contains("rounded to a neighbour"));
  CHECK_THAT(judged([](float v) { return v * 0.999f; }), Catch::Contains("rounded to a neighbour"));
  CHECK_THAT(judged([](float v) { return v * 1.2f; }), Catch::Contains("q["));
}

TEST_CASE("gated activations as 8-bit floats: zeros, NaNs and infinities", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  // Gates are 1, so that with Relu v is what is in the second half.
  constexpr int kRows = 3, kHidden = 300;
  std::vector<float> x(2 * kRows * kHidden, 1.0f);
  const auto up = [&](int r, int h) -> float& {
    return x[static_cast<std::size_t>(r * 2 * kHidden + kHidden + h)];
  };
  for (int h = 0; h < kHidden; ++h) {
    up(0, h) = 0;
    up(1, h) = up(2, h) = static_cast<float>(h % 7) - 3;
  }
  up(1, 5) = kNan;
  up(2, 290) = -kInfinity;
  std::vector<float8_e4m3> q(kRows * kHidden);
  const auto at = [&](int r, int h) {
    return static_cast<float>(q[static_cast<std::size_t>(r * kHidden + h)]);
  };
  std::vector<float> scales(3 * 4);
  const float* const from = x.data();

  const auto rows = gated_fp8_rows_kernel<float, Relu>();
  HostInstance<GatedFp8Kernel<float>>(rows, {128, 1, 4, 1, false, false})(
      {kRows, kHidden}, q.data(), scales.data(), from, kRows, kHidden);
  std::vector<float8_e4m3> want(q.size());
  std::vector<float> want_scales(scales.size());
  rows.reference(want.data(), want_scales.data(), from, kRows, kHidden);
  CHECK(rows.check({kRows, kHidden}, {q.data(), scales.data(), from, kRows, kHidden},
                   {want.data(), want_scales.data(), from, kRows, kHidden}) == "");
  CHECK((scales[0] == std::numeric_limits<float>::min() && at(0, 0) == 0));
  CHECK((scales[1] == 3.0f / 448 && std::isnan(at(1, 5)) && at(1, 0) == -448 && at(1, 6) == 448));
  CHECK((scales[2] == kInfinity && std::isnan(at(2, 290)) && at(2, 0) == 0));

  HostInstance<GatedFp8Kernel<float>>(gated_fp8_blocks_kernel<float, Relu>(),
                                      {32, 1, 4, 2, false, false})(
      {kRows, kHidden}, q.data(), scales.data(), from, kRows, kHidden);
  // [block][row]: only the block with the infinity has its scale.
  CHECK((scales[2] == 3.0f / 448 && scales[4 + 2] == 3.0f / 448 && scales[8 + 2] == kInfinity));
  CHECK((at(2, 0) == -448 && at(2, 257) == 0 && std::isnan(at(2, 290)) && std::isnan(at(1, 5))));

  const auto tensor = gated_fp8_tensor_kernel<float, Relu>();
  const HostInstance<GatedFp8TensorKernel<float>> by_scale(tensor, {32, 1, 4, 2, false, false});
  for (const float scale : {0.5f, -0.5f, 0.0f, kInfinity, kNan}) {
    CAPTURE(scale);
    by_scale({kRows, kHidden}, q.data(), from, &scale, kRows, kHidden);
    tensor.reference(want.data(), from, &scale, kRows, kHidden);
    for (std::size_t i = 0; i < q.size(); ++i) {
      const float got = float(q[i]), wanted = float(want[i]);
      if (!(got == wanted || (std::isnan(got) && std::isnan(wanted)))) FAIL_CHECK(i);
    }
    if (scale == 0.5f)
      CHECK((at(2, 0) == -6 && at(1, 6) == 6 && at(2, 290) == -448 && std::isnan(at(1, 5))));
    // What is below 2^-126 counts as that.
    if (scale <= 0) CHECK((at(2, 0) == -448 && at(1, 6) == 448 && at(0, 0) == 0));
    if (scale == kInfinity) CHECK((at(2, 0) == 0 && at(1, 6) == 0 && std::isnan(at(2, 290))));
    if (std::isnan(scale)) CHECK((std::isnan(at(2, 0)) && std::isnan(at(0, 0))));
  }
}
