// The GEMM's kinds on real hardware: each body with each transposition, padded rows, batches and
// epilogues, verified by the kernel's own reference, guard zones and gaps included.
#include "gemm_test.hpp"

using namespace kiln::templates;
using gpu_test::untuned_runtime, gpu_test::verified;
using kiln::bfloat16;
using kiln::epilogue::Bias, kiln::epilogue::Chain, kiln::epilogue::Gelu, kiln::epilogue::Residual,
    kiln::epilogue::Scale;

namespace {

constexpr GemmBody kSimt = GemmBody::simt, kMma = GemmBody::mma, kWgmma = GemmBody::wgmma,
                   kTma = GemmBody::tma, kTurns = GemmBody::pingpong, kStream = GemmBody::stream,
                   kShift = GemmBody::shift;
using C = GemmCluster;

const std::vector<Gemm> kTensorCores{
    {kMma, 64, 128, 64, 3, 32, 32, 8, 8},
    {kMma, 16, 64, 64, 4, 16, 16, 8, 8},
    {kMma, 64, 32, 32, 1, 32, 32, 8, 4},
    {kShift, 64, 64, 64, 3, 32, 32, 8, 8},
    {kShift, 16, 32, 64, 5, 16, 16, 8, 8},
    {kShift, 128, 128, 128, 2, 64, 32, 8, 4},
    {kWgmma, 64, 64, 64, 3, 64, 64, 8, 1},
    {kStream, 16, 32, 1024, 4, 16, 64, 8, 8},
    {kTurns, 128, 128, 64, 1, 128, 64, 8, 8},
    {kTurns, 64, 160, 64, 1, 64, 64, 8, 4, C::two_n},
    {kTurns, 128, 128, 64, 1, 128, 64, 8, 8, C::two_m, 1, true},
    {kTma, 128, 256, 64, 1, 64, 64, 8, 8, C::two_m},
    {kTma, 256, 128, 64, 1, 128, 64, 8, 8, C::two_n},
    {kTma, 64, 64, 128, 1, 64, 64, 8, 8, C::none, 2, false, false, 1, false, true},
    {kTma, 128, 96, 64, 1, 64, 64, 8, 8, C::split_3},
    {kTma, 64, 64, 64, 1, 64, 64, 8, 8, C::split_2},
    {kTma, 64, 16, 128, 1, 64, 64, 8, 8, C::none, 2, false, true, 1, false, true},
    {kTma, 128, 64, 64, 1, 128, 64, 8, 8, C::split_4, 1, false, true},
    {kTma, 128, 128, 64, 1, 64, 64, 8, 8, C::none, 1, false, false, 2, false},
    {kTma, 64, 96, 64, 1, 64, 64, 8, 8, C::none, 1, false, false, 16, false},
    {kTma, 128, 96, 64, 1, 64, 64, 8, 8, C::none, 1, false, false, 4, true},
    {kTma, 64, 64, 128, 1, 64, 64, 8, 8, C::none, 1, false, false, 6, true, true},
    {kTma, 64, 16, 64, 1, 64, 64, 8, 8, C::none, 1, false, true, 8, false, true},
    {kTma, 128, 64, 64, 1, 64, 64, 8, 8, C::none, 1, false, true, 16, true}};
const std::vector<Gemm> kPlain{{kSimt, 64, 64, 32, 2, 4, 4, 4, 8},
                               {kSimt, 32, 64, 32, 1, 4, 4, 4, 8}};

GemmStridedProblem padded(int m, int n, int k, int gap, int batch, bool shared) {
  const auto leading = [&](int row) { return GemmStride{(row + 7) / 8 * 8 + gap}; };
  const GemmStride largest = leading(std::max({m, n, k}));  // of each array, whatever lies along it
  return {m,
          n,
          k,
          largest,
          largest,
          largest,
          batch,
          m * largest,
          largest * (largest + 8),
          shared ? 0 : largest * (largest + 16)};
}

template <class T, GemmTranspose op>
void check_kinds(const std::vector<Gemm>& configs) {
  const kiln::Runtime runtime = untuned_runtime();
  using Fused = Chain<Bias<T>, Scale, Gelu, Residual<T>>;
  const std::vector<GemmProblem> tight{{128, 256, 128}, {16, 72, 40}, {8, 1032, 264},
                                       {264, 328, 520}, {67, 35, 33}, {130, 200, 1001},
                                       {7, 129, 0}};
  const std::vector<GemmStridedProblem> gaps{
      padded(130, 77, 99, 8, 3, false), padded(13, 264, 72, 16, 4, true),
      padded(300, 129, 65, 1, 2, false), padded(1, 8, 8, 0, 1, false),
      padded(64, 64, 64, 8, 0, false)};
  CHECK(verified(runtime, gemm_kernel<T, op>(), configs, tight) > 0);
  CHECK(verified(runtime, gemm_kernel<T, op, Fused>(), configs, tight) > 0);
  CHECK(verified(runtime, gemm_strided_kernel<T, op>(), configs, gaps) > 0);
  CHECK(verified(runtime, gemm_strided_kernel<T, op, Fused>(), configs, gaps) > 0);
}

}  // namespace

TEST_CASE("gemm's kinds are right by each body", "[gpu][templates]") {
  check_kinds<bfloat16, GemmTranspose::nt>(kTensorCores);
  check_kinds<bfloat16, GemmTranspose::nn>(kTensorCores);
  check_kinds<bfloat16, GemmTranspose::tn>(kTensorCores);
  check_kinds<bfloat16, GemmTranspose::tt>(kTensorCores);
  check_kinds<float, GemmTranspose::nt>(kPlain);
  check_kinds<float, GemmTranspose::tn>(kPlain);
}

// Blocks that leave their sums to each other in memory, launch after launch: what one launch leaves
// behind in the workspace, and what of it the next one may already read, is the whole difficulty.
TEST_CASE("blocks that share k through memory do so launch after launch", "[gpu][templates]") {
  kiln::RuntimeOptions options;
  options.device = "cuda:0";
  options.store.disk = false;
  options.mode = kiln::Mode::untuned;
  const kiln::Runtime runtime(options);
  const auto kernel = gemm_kernel<bfloat16>();
  const auto tuned = runtime.tuned(kernel);
  const kiln::DynamicSpace space = kernel.definition().space;
  const auto limits = runtime.device().limits;
  const GemmProblem p{200, 328, 1160};
  const auto count = [](int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  };
  // Small integers: every order of adding gives the same sum.
  std::vector<bfloat16> a(count(p.m, p.k)), b(count(p.n, p.k)), other(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = bfloat16(static_cast<float>(static_cast<int>(i * 7 % 5) - 2));
    other[i] = bfloat16(static_cast<float>(static_cast<int>(i * 11 % 5) - 2));
  }
  for (std::size_t i = 0; i < b.size(); ++i)
    b[i] = bfloat16(static_cast<float>(static_cast<int>(i * 3 % 3) - 1));
  const auto on_device = [&](const std::vector<bfloat16>& data) { return runtime.array(data); };
  const auto a_of = std::array{on_device(a), on_device(other)};
  const auto b_of = on_device(b);
  constexpr int kLaunches = 200, kRounds = 5;
  int tried = 0;
  for (const Gemm& config : kTensorCores) {
    if (config.parts == 1) continue;
    const auto values = kiln::to_values(config);
    if (space.violated(values, kiln::to_values(p), limits)) continue;
    ++tried;
    INFO(space.describe(values));
    const auto launch = tuned.with_config(config);
    std::vector<std::vector<bfloat16>> first;
    for (int which : {0, 1}) {
      auto c = runtime.array<bfloat16>(count(p.m, p.n));
      tuned(kiln::Stream{}, c.data(), a_of[which].data(), b_of.data(), p.m, p.n, p.k);
      runtime.synchronize();
      first.push_back(c.download());
    }
    std::vector<kiln::Array<bfloat16>> c;
    for (int i = 0; i < kLaunches; ++i) c.push_back(runtime.array<bfloat16>(count(p.m, p.n)));
    int wrong = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kLaunches; ++i)
        launch(kiln::Stream{}, c[i].data(), a_of[i % 2].data(), b_of.data(), p.m, p.n, p.k);
      runtime.synchronize();
      for (int i = 0; i < kLaunches; ++i) wrong += c[i].download() != first[i % 2];
    }
    CHECK(wrong == 0);
  }
  CHECK((limits.compute_capability != 90 || tried == 6));
}

TEST_CASE("gemm finds elements beyond 2^31", "[gpu][templates][slow]") {
  kiln::RuntimeOptions options;
  options.device = "cuda:0";
  options.store.disk = false;
  options.mode = kiln::Mode::untuned;
  const kiln::Runtime runtime(options);
  // Two batches of a few rows, as far apart as 2^31 elements and more.
  const GemmStride far = (GemmStride{1} << 31) + 64;
  const auto gemm = runtime.tuned(gemm_strided_kernel<bfloat16>());
  const int m = 8, n = 64, k = 64;
  auto c = runtime.array<bfloat16>(static_cast<std::size_t>(far) + m * n);
  auto a = runtime.array(std::vector<bfloat16>(m * k, bfloat16(1.0f)));
  auto b = runtime.array(std::vector<bfloat16>(n * k, bfloat16(0.5f)));
  gemm(kiln::Stream{}, c.data(), a.data(), b.data(), m, n, k, std::int64_t{n}, std::int64_t{k},
       std::int64_t{k}, 2, std::int64_t{far}, std::int64_t{0}, std::int64_t{0});
  runtime.synchronize();
  const auto got = c.download();
  CHECK(static_cast<float>(got[0]) == 32.0f);
  CHECK(static_cast<float>(got[static_cast<std::size_t>(far)]) == 32.0f);
  CHECK(static_cast<float>(got.back()) == 32.0f);
}
