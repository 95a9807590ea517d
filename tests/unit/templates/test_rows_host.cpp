// The kernels over rows on the host target: softmax, cross-entropy and norms.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kiln/runtime.hpp"
#include "row_test.hpp"

using namespace kiln::templates;
using template_test::Array;
using template_test::HostInstance;
using template_test::kInfinity;
using template_test::kNan;
using template_test::kShapes;
using template_test::RowShape;
using template_test::wrong_elements;

namespace {

template <class T>
void check_softmax(const RowConfig& config) {
  const auto kernel = softmax_kernel<T>();
  const HostInstance<SoftmaxKernel<T>> softmax(kernel, config);
  for (const RowShape& s : kShapes) {
    INFO(s.describe() << " " << template_test::describe(config));
    Array<T> y(s.elements(), s.y_offset), x(s.elements(), s.x_offset), want(s.elements());
    x.reals(1);
    softmax({s.rows, s.width}, y.data(), static_cast<const T*>(x.data()), s.rows, s.width);
    kernel.reference(want.data(), x.data(), s.rows, s.width);
    CHECK(wrong_elements(y, want, kernel.tolerance) == 0);
    // In place.
    softmax({s.rows, s.width}, x.data(), static_cast<const T*>(x.data()), s.rows, s.width);
    CHECK(wrong_elements(x, want, kernel.tolerance) == 0);
  }
}

template <class T>
void check_cross_entropy(const RowConfig& config) {
  const auto kernel = cross_entropy_kernel<T>();
  const HostInstance<CrossEntropyKernel<T>> cross_entropy(kernel, config);
  constexpr int kIgnored = -7;
  for (const RowShape& s : kShapes) {
    INFO(s.describe() << " " << template_test::describe(config));
    const auto rows = static_cast<std::size_t>(s.rows);
    Array<float> loss(rows), want(rows);
    Array<T> x(s.elements(), s.x_offset);
    x.reals(2);
    std::vector<int> labels(rows);
    for (int r = 0; r < s.rows; ++r)
      labels[static_cast<std::size_t>(r)] =
          r % 3 == 1 ? kIgnored : static_cast<int>(7919ll * (r + 1) % s.width);
    if (rows > 4) labels[3] = s.width, labels[4] = -1;  // out of range
    cross_entropy({s.rows, s.width}, loss.data(), static_cast<const T*>(x.data()),
                  static_cast<const int*>(labels.data()), s.rows, s.width, kIgnored);
    kernel.reference(want.data(), x.data(), labels.data(), s.rows, s.width, kIgnored);
    CHECK(wrong_elements(loss, want, kernel.tolerance) == 0);
    if (rows > 4) CHECK((loss[1] == 0 && std::isnan(loss[3]) && std::isnan(loss[4])));
  }
}

template <class T>
void check_layernorm(const RowConfig& config) {
  const auto kernel = layernorm_kernel<T>();
  const HostInstance<LayerNormKernel<T>> norm(kernel, config);
  for (const RowShape& s : kShapes) {
    INFO(s.describe() << " " << template_test::describe(config));
    const auto width = static_cast<std::size_t>(s.width);
    Array<T> y(s.elements(), s.y_offset), x(s.elements(), s.x_offset), want(s.elements()),
        w(width, s.x_offset), b(width, s.y_offset);
    x.reals(3);
    w.reals(4);
    b.reals(5);
    norm({s.rows, s.width}, y.data(), static_cast<const T*>(x.data()),
         static_cast<const T*>(w.data()), static_cast<const T*>(b.data()), s.rows, s.width, 1e-5f);
    kernel.reference(want.data(), x.data(), w.data(), b.data(), s.rows, s.width, 1e-5f);
    CHECK(wrong_elements(y, want, kernel.tolerance) == 0);
  }
}

template <class T>
void check_rmsnorm_residual(const RowConfig& config) {
  const auto kernel = rmsnorm_residual_kernel<T>();
  const HostInstance<RmsNormResidualKernel<T>> norm(kernel, config);
  constexpr kiln::Tolerance kExact{.relative = 0, .absolute = 0};
  for (const RowShape& s : kShapes) {
    INFO(s.describe() << " " << template_test::describe(config));
    const auto width = static_cast<std::size_t>(s.width);
    Array<T> y(s.elements(), s.y_offset), residual(s.elements(), s.y_offset),
        x(s.elements(), s.x_offset), w(width, s.x_offset), want(s.elements()), sum(s.elements());
    const auto run = [&](T* to) {
      residual.reals(6);
      norm({s.rows, s.width}, to, residual.data(), static_cast<const T*>(x.data()),
           static_cast<const T*>(w.data()), s.rows, s.width, 1e-5f);
      CHECK(wrong_elements(residual, sum, kExact) == 0);
    };
    x.reals(7);
    w.reals(8);
    sum.reals(6);
    kernel.reference(want.data(), sum.data(), x.data(), w.data(), s.rows, s.width, 1e-5f);
    run(y.data());
    CHECK(wrong_elements(y, want, kernel.tolerance) == 0);
    run(x.data());  // in place
    CHECK(wrong_elements(x, want, kernel.tolerance) == 0);
  }
}

/// Rows between others that hold what none of the others may notice.
class Rows {
 public:
  Rows(int width, std::vector<std::vector<float>> special)
      : width_(static_cast<std::size_t>(width)), x_((2 * special.size() + 1) * width_) {
    x_.reals(9);
    for (std::size_t i = 0; i < special.size(); ++i)
      for (std::size_t j = 0; j < width_; ++j)
        x_[(2 * i + 1) * width_ + j] =
            special[i][j < special[i].size() ? j : special[i].size() - 1];
  }
  int count() const { return static_cast<int>(x_.size() / width_); }
  const float* data() { return x_.data(); }

 private:
  std::size_t width_;
  Array<float> x_;
};

constexpr int kWidth = 300;
const std::vector<RowConfig> kExtremeConfigs{
    {128, 1, 4, 1, false, false}, {128, 1, 4, 1, true, true}, {128, 4, 4, 4, true, false}};

/// With blocks that share a row, all of which they keep, or not.
template <class T, class Kernel>
std::vector<RowConfig> logit_configs(const Kernel& kernel) {
  auto configs = template_test::row_configs<T>(kernel);
  constexpr int kWidest = 16 / sizeof(T);
  configs.push_back({64, 1, kWidest, 4, true, false, 1024, 4});
  configs.push_back({32, 1, kWidest, 1, false, false, 2048, 2});
  return configs;
}

}  // namespace

TEMPLATE_TEST_CASE("softmax: all lengths, alignments and ways", "[templates][host]", float,
                   kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (const RowConfig& config : logit_configs<TestType>(softmax_kernel<TestType>()))
    check_softmax<TestType>(config);
}

TEMPLATE_TEST_CASE("cross-entropy: all lengths, labels and ways", "[templates][host]", float,
                   kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (const RowConfig& config : logit_configs<TestType>(cross_entropy_kernel<TestType>()))
    check_cross_entropy<TestType>(config);
}

TEMPLATE_TEST_CASE("layernorm: all lengths, alignments and ways", "[templates][host]", float,
                   kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (const RowConfig& config : template_test::row_configs<TestType>(layernorm_kernel<TestType>()))
    check_layernorm<TestType>(config);
}

TEMPLATE_TEST_CASE("rmsnorm_residual: both results, all lengths and alignments, in place",
                   "[templates][host]", float, kiln::float16, kiln::bfloat16) {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (RowConfig config : template_test::row_configs<TestType>(rmsnorm_residual_kernel<TestType>()))
    if (!config.online) check_rmsnorm_residual<TestType>(config);
}

TEST_CASE("softmax and cross-entropy: infinities, NaNs and the largest floats stay in their rows",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  constexpr float kMost = std::numeric_limits<float>::max();
  Rows x(kWidth, {{0, kNan, 0},
                  {kInfinity, 1},
                  {-kInfinity},
                  {-kInfinity, 2, -kInfinity},
                  {kMost, -kMost},
                  {-kMost},
                  {1e30f, 1e30f, -1e30f}});
  const int rows = x.count();
  const auto softmax_want = softmax_kernel<float>();
  const auto loss_want = cross_entropy_kernel<float>();
  const auto count = static_cast<std::size_t>(rows) * kWidth;
  Array<float> want(count), losses_want(static_cast<std::size_t>(rows));
  const std::vector<int> label(static_cast<std::size_t>(rows), 1);
  softmax_want.reference(want.data(), x.data(), rows, kWidth);
  loss_want.reference(losses_want.data(), x.data(), label.data(), rows, kWidth, -1);
  for (const RowConfig& config : kExtremeConfigs) {
    INFO(template_test::describe(config));
    Array<float> y(count), loss(static_cast<std::size_t>(rows));
    HostInstance<SoftmaxKernel<float>>(softmax_want, config)({rows, kWidth}, y.data(), x.data(),
                                                             rows, kWidth);
    HostInstance<CrossEntropyKernel<float>>(loss_want, config)(
        {rows, kWidth}, loss.data(), x.data(), label.data(), rows, kWidth, -1);
    const auto of = [&](std::size_t special, std::size_t c) {
      return y[(2 * special + 1) * kWidth + c];
    };
    for (const std::size_t special : {0, 1, 2}) {
      INFO(special);
      CHECK(std::isnan(of(special, 0)));
      CHECK(std::isnan(of(special, kWidth - 1)));
      CHECK(std::isnan(loss[2 * special + 1]));
    }
    CHECK((of(3, 0) == 0 && of(3, 1) == 1 && of(3, 2) == 0));
    CHECK(loss[7] == Approx(0).margin(1e-6));
    CHECK((of(4, 0) == 1 && of(4, 1) == 0));
    CHECK(loss[9] == kInfinity);  // the logits are 2^129 apart
    CHECK(of(5, 7) == Approx(1.0f / kWidth));
    CHECK(loss[11] == Approx(std::log(static_cast<float>(kWidth))));
    CHECK((of(6, 0) == 0.5f && of(6, 1) == 0.5f && of(6, 2) == 0));
    CHECK(loss[13] == Approx(std::log(2.0f)));
    int wrong = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); r += 2) {
      for (std::size_t c = r * kWidth; c < (r + 1) * kWidth; ++c)
        wrong += !(std::abs(y[c] - want[c]) <= 2e-5f * want[c]);
      wrong += !(std::abs(loss[r] - losses_want[r]) <= 1e-4f);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("norms: infinities and NaNs stay in their rows, a large mean costs no digits",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  std::vector<float> large(kWidth), zeros{0};
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = 1e5f + static_cast<float>(i % 4);
  Rows x(kWidth, {{0, kNan, 0}, {1, -kInfinity, 1}, zeros, large, {3e19f}});
  const int rows = x.count();
  const auto count = static_cast<std::size_t>(rows) * kWidth;
  const std::vector<float> w(kWidth, 2), b(kWidth, 0.5f);
  Array<float> want(count);
  const auto kernel = layernorm_kernel<float>();
  kernel.reference(want.data(), x.data(), w.data(), b.data(), rows, kWidth, 1e-5f);
  for (const RowConfig& config : kExtremeConfigs) {
    INFO(template_test::describe(config));
    Array<float> y(count);
    HostInstance<LayerNormKernel<float>>(kernel, config)({rows, kWidth}, y.data(), x.data(),
                                                         w.data(), b.data(), rows, kWidth, 1e-5f);
    CHECK(wrong_elements(y, want, {.relative = 1e-3, .absolute = 1e-4}) == 0);
    CHECK((std::isnan(y[kWidth + 9]) && std::isnan(y[3 * kWidth + 9])));
    CHECK(y[5 * kWidth + 9] == 0.5f);            // the bias, where all are equal
    CHECK_FALSE(std::isnan(y[9 * kWidth + 9]));  // though the square is beyond the largest float
    if (config.online) continue;

    Array<float> normed(count), sum(count);
    for (std::size_t i = 0; i < count; ++i) sum[i] = 0;
    HostInstance<RmsNormResidualKernel<float>>(rmsnorm_residual_kernel<float>(), config)(
        {rows, kWidth}, normed.data(), sum.data(), x.data(), w.data(), rows, kWidth, 1e-5f);
    CHECK(std::equal(x.data(), x.data() + kWidth, sum.data()));
    CHECK((std::isnan(normed[kWidth]) && std::isnan(normed[2 * kWidth - 1])));
    CHECK((normed[3 * kWidth] == 0 && std::isnan(normed[3 * kWidth + 1])));
    CHECK((normed[5 * kWidth] == 0 && normed[6 * kWidth - 1] == 0));
    for (const std::size_t r : {0, 2, 4, 6, 7, 8, 10}) CHECK(std::isfinite(normed[r * kWidth + 5]));
  }
}

TEST_CASE("layernorm: a mean that is no float costs no digits, what has no scale gives the bias",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  constexpr int kOdd = 301;
  std::vector<float> large(kOdd), small(kOdd), outlier{-1e6f, 1, 2};
  for (std::size_t i = 0; i < large.size(); ++i) {
    large[i] = 1e6f + static_cast<float>(i % 4);
    small[i] = 1 + 1e-6f * static_cast<float>(i % 7);
  }
  // Of the last two the squared deviations are beyond the largest float.
  const std::vector<float> apart{3e19f, 0, 1}, far_apart{-1e38f, 1e38f, -1e38f};
  Rows x(kOdd, {large, small, {1e6f / 3}, {3e19f}, {-0.1f}, outlier, apart, far_apart});
  const int rows = x.count();
  const auto count = static_cast<std::size_t>(rows) * kOdd;
  const std::vector<float> w(kOdd, 2), b(kOdd, 0.5f);
  Array<float> want(count);
  const auto kernel = layernorm_kernel<float>();
  kernel.reference(want.data(), x.data(), w.data(), b.data(), rows, kOdd, 1e-20f);
  for (const RowConfig& config : kExtremeConfigs) {
    INFO(template_test::describe(config));
    Array<float> y(count);
    HostInstance<LayerNormKernel<float>>(kernel, config)({rows, kOdd}, y.data(), x.data(), w.data(),
                                                         b.data(), rows, kOdd, 1e-20f);
    CHECK(wrong_elements(y, want, {.relative = 1e-5, .absolute = 1e-5}) == 0);
    for (const std::size_t equal : {5, 7, 9, 13, 15})
      CHECK(std::all_of(y.data() + equal * kOdd, y.data() + (equal + 1) * kOdd,
                        [](float value) { return value == 0.5f; }));
  }
}

TEST_CASE("kernels over rows: nothing is touched where there are no elements",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  kiln::RuntimeOptions options;
  options.device = "host";
  options.mode = kiln::Mode::untuned;
  options.store.disk = false;
  const kiln::Runtime runtime(options);
  float* const none = nullptr;
  const float* const in = nullptr;
  kiln::float8_e4m3* const q = nullptr;
  const int* const labels = nullptr;
  for (const auto& [rows, width] : {std::pair{0, 64}, {5, 0}, {0, 0}}) {
    CHECK_NOTHROW(runtime.tuned(softmax_kernel<float>())({}, none, in, rows, width));
    CHECK_NOTHROW(
        runtime.tuned(cross_entropy_kernel<float>())({}, none, in, labels, rows, width, -1));
    CHECK_NOTHROW(
        runtime.tuned(layernorm_kernel<float>())({}, none, in, in, in, rows, width, 1e-5f));
    CHECK_NOTHROW(runtime.tuned(rmsnorm_residual_kernel<float>())({}, none, none, in, in, rows,
                                                                  width, 1e-5f));
    CHECK_NOTHROW(
        runtime.tuned(rmsnorm_fp8_kernel<float>())({}, q, none, in, in, rows, width, 1e-5f));
    CHECK_NOTHROW(runtime.tuned(quantize_rows_kernel<float>())({}, q, none, in, rows, width));
    CHECK_NOTHROW(runtime.tuned(quantize_blocks_kernel<float>())({}, q, none, in, rows, width));
    CHECK_NOTHROW(runtime.tuned(quantize_tensor_kernel<float>())({}, q, in, in, rows, width));
  }
}
