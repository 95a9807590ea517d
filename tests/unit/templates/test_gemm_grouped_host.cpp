// Grouped GEMMs on the host target: exact on ragged groups, nothing else is written, sizes that
// make no sense lead nowhere, and the sizes that tunings draw.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "kiln/kernels/gemm_grouped.hpp"
#include "kiln/kiln.hpp"
#include "template_test.hpp"

using namespace kiln::templates;
using kiln::bfloat16, kiln::float16;
using kiln::epilogue::Bias, kiln::epilogue::Chain, kiln::epilogue::Gelu;
using template_test::Array;
using template_test::HostInstance;

namespace {

kiln::RuntimeOptions grouped_options(kiln::Mode mode) {
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  options.mode = mode;
  return options;
}

/// The first row of a group behind one that ends with row `before`.
std::size_t first_row(const GroupedProblem&, std::size_t before) { return before; }
std::size_t first_row(const PaddedProblem& p, std::size_t before) {
  const auto step = static_cast<std::size_t>(p.row_alignment);
  return before + (step - before % step) % step;
}

template <class Problem>
struct GroupedCase {
  Problem problem;
  std::vector<int> sizes;
};

/// Elements of C that are not as they should be, those that must be left alone included.
template <class T, class Problem, class... More>
std::size_t wrong_elements(
    const HostInstance<kiln::Kernel<
        Gemm, Problem, void(T*, const T*, const T*, const int*, int, int, int, int, More...)>>&
        gemm,
    const GroupedCase<Problem>& given, std::size_t offset, More... more) {
  constexpr bool kMasked = std::is_same_v<Problem, MaskedProblem>;
  const Problem& p = given.problem;
  const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n),
             k = static_cast<std::size_t>(p.k), groups = static_cast<std::size_t>(p.groups);
  const std::size_t rows = kMasked ? m * groups : m;
  Array<T> c(rows * n, offset), a(rows * k, offset), b(groups * n * k, offset);
  a.integers(2, 1);
  b.integers(2, 2);
  constexpr float kLeft = -12345;
  std::vector<float> want(rows * n, static_cast<float>(T(kLeft)));
  for (std::size_t i = 0; i < rows * n; ++i) c[i] = T(kLeft);
  for (std::size_t g = 0, row = 0; g < groups; ++g) {
    std::size_t end = static_cast<std::size_t>(std::clamp(given.sizes[g], 0, p.m));
    if constexpr (kMasked)
      row = g * m, end += row;
    else
      row = first_row(p, row);
    for (; row < end; ++row)
      for (std::size_t j = 0; j < n; ++j) {
        float sum = 0;
        for (std::size_t l = 0; l < k; ++l)
          sum += static_cast<float>(a[row * k + l]) * static_cast<float>(b[(g * n + j) * k + l]);
        want[row * n + j] = static_cast<float>(T(sum));
      }
  }
  gemm(p, c.data(), static_cast<const T*>(a.data()), static_cast<const T*>(b.data()),
       given.sizes.data(), p.m, p.n, p.k, p.groups, more...);
  std::size_t wrong = c.margins_intact() ? 0 : want.size() + 1;
  for (std::size_t i = 0; i < want.size(); ++i) wrong += !(static_cast<float>(c[i]) == want[i]);
  return wrong;
}

const std::vector<GroupedCase<GroupedProblem>> kContiguous{
    {{50, 33, 40, 5}, {7, 7, 8, 40, 47}},   // an empty one; three rows are nobody's
    {{50, 24, 32, 4}, {-9, 30, 20, 1000}},  // one that is negative, one that falls, one beyond
    {{50, 8, 8, 3}, {0, 0, 0}},
    {{9, 65, 17, 1}, {9}},
    {{9, 8, 0, 2}, {4, 8}},  // without k sums are 0
    {{3, 8, 8, 40}, std::vector<int>(40, 2)}};
const std::vector<GroupedCase<PaddedProblem>> kPadded{
    {{90, 33, 40, 5, 16},
     {7, 16, 33, 33, 83}},  // an empty one that ends where it begins, and another
    {{50, 24, 32, 4, 12}, {-9, 30, 20, 1000}},
    {{50, 24, 32, 3, 32}, {40, 50, 50}},  // no row is left for the second
    {{50, 33, 40, 5, 1}, {7, 7, 8, 40, 47}},
    {{9, 8, 0, 2, 4}, {3, 6}},  // without k sums are 0
    {{9, 65, 17, 2, 2147483647}, {5, 9}},
    {{200, 8, 8, 40, 4}, [] {
       std::vector<int> ends;
       for (int g = 0; g < 40; ++g) ends.push_back(4 * g + g % 5);
       return ends;
     }()}};
const std::vector<GroupedCase<MaskedProblem>> kMaskedCases{{{17, 33, 40, 5, 8}, {0, 17, 1, 16, 5}},
                                                           {{17, 24, 32, 4, 0}, {-9, 30, 2, 0}},
                                                           {{5, 8, 8, 3, 100}, {0, 0, 0}},
                                                           {{9, 65, 17, 1, 9}, {8}}};

template <class T>
void check_exact(const Gemm& config) {
  const HostInstance<GemmGroupedKernel<T>> contiguous(gemm_grouped_kernel<T>(), config);
  const HostInstance<GemmPaddedKernel<T>> padded(gemm_padded_kernel<T>(), config);
  const HostInstance<GemmMaskedKernel<T>> masked(gemm_masked_kernel<T>(), config);
  for (std::size_t offset : {0, 1}) {
    for (const auto& given : kContiguous) {
      CAPTURE(config.block_m, given.problem.m, given.sizes, offset);
      CHECK(wrong_elements<T>(contiguous, given, offset) == 0);
    }
    for (const auto& given : kPadded) {
      CAPTURE(config.block_m, given.problem.m, given.sizes, offset);
      CHECK(wrong_elements<T>(padded, given, offset, given.problem.row_alignment) == 0);
    }
    for (const auto& given : kMaskedCases) {
      CAPTURE(config.block_m, given.problem.m, given.sizes, offset);
      CHECK(wrong_elements<T>(masked, given, offset, given.problem.expected) == 0);
    }
  }
}

}  // namespace

TEST_CASE("grouped gemm: each body writes the rows of each group and no others",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const Gemm standard = GemmGroupedKernel<float>(gemm_grouped_kernel<float>())
                            .space.default_config(kiln::Target::Kind::host);
  check_exact<float>(standard);
  check_exact<bfloat16>(standard);
  check_exact<float16>({GemmBody::simt, 24, 40, 32, 4, 3, 8, 4, 3});
  check_exact<bfloat16>({GemmBody::mma, 32, 32, 32, 2, 16, 16, 8, 1});
}

TEST_CASE("grouped gemm: data, epilogues and verdicts", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime(grouped_options(kiln::Mode::untuned));
  const auto right = [&](const auto& kernel, const auto& problem) {
    const kiln::Verification v = runtime.tuned(kernel).verify(problem);
    INFO(kernel.name << ": " << v.why);
    CHECK(v.right);
  };
  using Fused = Chain<Bias<bfloat16>, Gelu>;
  for (const GroupedProblem& p :
       {GroupedProblem{100, 40, 50, 7}, {3, 8, 8, 5}, {20, 8, 8, 0}, {0, 8, 8, 3}, {6, 4, 0, 2}}) {
    right(gemm_grouped_kernel<bfloat16>(), p);
    right(gemm_grouped_kernel<bfloat16, Fused>(), p);
  }
  for (const PaddedProblem& p : {PaddedProblem{100, 40, 50, 7, 16},
                                 {3, 8, 8, 5, 128},
                                 {20, 8, 8, 0, 8},
                                 {0, 8, 8, 3, 8},
                                 {6, 4, 0, 2, 2}}) {
    right(gemm_padded_kernel<bfloat16>(), p);
    right(gemm_padded_kernel<bfloat16, Fused>(), p);
  }
  for (const MaskedProblem& p :
       {MaskedProblem{20, 40, 50, 5, 8}, {8, 8, 8, 3, 0}, {8, 8, 8, 0, 1}, {0, 8, 8, 3, 9}}) {
    right(gemm_masked_kernel<float>(), p);
    right(gemm_masked_kernel<bfloat16, Fused>(), p);
  }
  // A kernel that goes by other sizes than its data say is found out.
  auto wrong = gemm_grouped_kernel<float>();
  wrong.reference = [](float* c, const float*, const float*, const int*, int m, int n, int, int) {
    std::fill_n(c, m * n, 1.0f);
  };
  CHECK_FALSE(runtime.tuned(wrong).verify({30, 8, 8, 3}).right);
  // So is one that computes padding as rows of the group in front of it.
  auto careless = gemm_padded_kernel<float>();
  careless.reference = [](float* c, const float* a, const float* b, const int* ends, int m, int n,
                          int k, int groups, int row_alignment) {
    std::vector<int> padded(ends, ends + groups);
    for (int& end : padded) end = group_begin(end, row_alignment, m);
    gemm_padded_kernel<float>().reference(c, a, b, padded.data(), m, n, k, groups, row_alignment);
  };
  CHECK_FALSE(runtime.tuned(careless).verify({64, 8, 8, 3, 16}).right);
}

TEST_CASE("grouped gemm: large problems are verified on the device", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime(grouped_options(kiln::Mode::tune_now));
  kiln::TuneOptions few;
  few.max_evaluations = 2;
  const auto check = [&](const auto& kernel, const auto& problem) {
    const kiln::TuneResult result = runtime.tuned(kernel).tune(problem, few);
    for (const std::string& warning : result.warnings)
      CHECK(warning.find("the reference on the host is used") == warning.npos);
    CHECK(result.count(kiln::CandidateStatus::wrong_result) == 0);
    CHECK(result.count(kiln::CandidateStatus::measured) > 0);
  };
  check(gemm_grouped_kernel<bfloat16>(), GroupedProblem{256, 256, 200, 4});
  check(gemm_padded_kernel<bfloat16>(), PaddedProblem{256, 256, 200, 4, 32});
  check(gemm_masked_kernel<bfloat16>(), MaskedProblem{128, 256, 200, 4, 64});
}

TEST_CASE("grouped gemm: what makes no sense is refused", "[templates]") {
  const kiln::Runtime runtime(grouped_options(kiln::Mode::untuned));
  const auto gemm = runtime.tuned(gemm_grouped_kernel<float>());
  const auto masked = runtime.tuned(gemm_masked_kernel<float>());
  std::vector<float> c(64), a(64), b(256);
  const std::vector<int> ends{4, 8};
  const auto says = [&](const std::string& words, const auto& call) {
    CHECK(template_test::refusal(call).find(words) != std::string::npos);
  };
  says("negative", [&] { gemm({}, c.data(), a.data(), b.data(), ends.data(), -1, 8, 8, 2); });
  says("negative", [&] { gemm({}, c.data(), a.data(), b.data(), ends.data(), 8, 8, 8, -2); });
  says("negative", [&] { masked({}, c.data(), a.data(), b.data(), ends.data(), 4, 8, 8, 2, -1); });
  says("C overlaps A or B",
       [&] { gemm({}, c.data(), c.data() + 63, b.data(), ends.data(), 8, 8, 8, 2); });
  const auto padded = runtime.tuned(gemm_padded_kernel<float>());
  for (const int alignment : {0, -128})
    says("row_alignment is " + std::to_string(alignment),
         [&] { padded({}, c.data(), a.data(), b.data(), ends.data(), 8, 8, 8, 2, alignment); });
  says("row_alignment is 0", [&] { padded.verify({8, 8, 8, 2, 0}); });
  says("negative", [&] { padded({}, c.data(), a.data(), b.data(), ends.data(), 8, 8, 8, -2, 8); });
  says("C overlaps A or B",
       [&] { padded({}, c.data(), c.data() + 63, b.data(), ends.data(), 8, 8, 8, 2, 4); });
  says("C overlaps A or B",
       [&] { masked({}, b.data() + 127, a.data(), b.data(), ends.data(), 4, 8, 8, 2, 4); });
}

TEST_CASE("grouped gemm: tunings draw groups that are equal, lopsided and empty", "[templates]") {
  const auto draw = [](const kiln::KernelDefinition& k, const kiln::Values& problem,
                       std::size_t number) {
    kiln::Workload w(1, number);
    k.workload(problem, w);
    const auto& bytes = w.arguments()[3].bytes;
    const int* const sizes = reinterpret_cast<const int*>(bytes.data());
    return std::vector<int>(sizes, sizes + bytes.size() / sizeof(int));
  };
  const auto contiguous = gemm_grouped_kernel<bfloat16>().definition();
  REQUIRE(contiguous.draws.size() == 3);
  for (const std::int64_t groups : {1, 2, 8, 128, 1009})
    for (const std::int64_t m : {1, 100, 8192})
      for (std::size_t number = 0; number < 3; ++number) {
        CAPTURE(groups, m, number);
        const std::vector<int> ends = draw(contiguous, {m, 8, 8, groups}, number);
        REQUIRE(ends.size() == std::size_t(groups));
        CHECK(std::is_sorted(ends.begin(), ends.end()));
        CHECK((ends.front() >= 0 && ends.back() == m));
      }
  const auto rows = [](std::vector<int> ends) {
    for (std::size_t g = ends.size() - 1; g > 0; --g) ends[g] -= ends[g - 1];
    return ends;
  };
  const std::vector<int> equal = rows(draw(contiguous, {8192, 8, 8, 128}, 0)),
                         lopsided = rows(draw(contiguous, {8192, 8, 8, 128}, 1)),
                         empty = rows(draw(contiguous, {8192, 8, 8, 128}, 2));
  CHECK(std::count(equal.begin(), equal.end(), 64) == 128);
  CHECK(*std::max_element(lopsided.begin(), lopsided.end()) > 8 * 64);
  CHECK(*std::min_element(lopsided.begin(), lopsided.end()) < 64 / 2);
  CHECK(std::count(empty.begin(), empty.end(), 0) == 64);

  const auto padded = gemm_padded_kernel<bfloat16>().definition();
  REQUIRE(padded.draws == contiguous.draws);
  for (const std::int64_t groups : {1, 2, 8, 128, 1009})
    for (const std::int64_t m : {1, 100, 8192, 2147483647})
      for (const std::int64_t alignment : {1, 3, 128, 2147483647})
        for (std::size_t number = 0; number < 3; ++number) {
          CAPTURE(groups, m, alignment, number);
          kiln::Workload w(1, number);
          // No arrays of that size: the sizes of groups do not depend on n and k.
          padded.workload(kiln::Values{m, 0, 0, groups, alignment}, w);
          const auto& bytes = w.arguments()[3].bytes;
          std::vector<int> ends(bytes.size() / sizeof(int));
          std::memcpy(ends.data(), bytes.data(), bytes.size());
          REQUIRE(ends.size() == std::size_t(groups));
          std::int64_t before = 0, computed = 0;
          bool fits = true;
          for (const std::int64_t end : ends) {
            const std::int64_t begin =
                std::min(m, (before + alignment - 1) / alignment * alignment);
            fits = fits && end >= begin && end <= m;
            computed += end - begin;
            before = end;
          }
          CHECK(fits);
          CHECK(computed > 0);
          if (alignment == 1 && m < 10000)
            CHECK(ends == draw(contiguous, {m, 8, 8, groups}, number));
        }
  const std::vector<int> blocks = draw(padded, {8192, 8, 8, 8, 128}, 0);
  int whole = 0;
  for (std::size_t g = 0; g < 8; ++g) {
    CHECK((blocks[g] > int(g) * 1024 + 896 && blocks[g] <= int(g) * 1024 + 1024));
    whole += blocks[g] % 128 == 0;
  }
  CHECK(whole < 4);  // most have padding

  const auto masked = gemm_masked_kernel<bfloat16>().definition();
  const auto counts = [&](std::int64_t expected, std::size_t number) {
    return draw(masked, {64, 8, 8, 128, expected}, number);
  };
  const std::vector<int> few = counts(10, 0), half = counts(0, 0);
  CHECK(std::count(few.begin(), few.end(), 10) == 128);
  CHECK(std::count(half.begin(), half.end(), 32) == 128);
  for (std::size_t number = 0; number < 3; ++number)
    for (const int count : counts(1000, number)) CHECK((count >= 0 && count <= 64));
  const std::vector<int> every_second = counts(10, 2);
  CHECK(std::count(every_second.begin(), every_second.end(), 20) == 64);
  // The weights of groups without rows need not be read.
  CHECK(contiguous.bytes(kiln::Values{0, 64, 64, 8}) == 0);
  CHECK(contiguous.flops(kiln::Values{100, 64, 32, 8}) == 2.0 * 100 * 64 * 32);
  // Nor is padding computed.
  const double of_padded = padded.flops(kiln::Values{8192, 64, 32, 64, 128});
  CHECK(of_padded > 0.3 * 2.0 * 8192 * 64 * 32);
  CHECK(of_padded < 0.7 * 2.0 * 8192 * 64 * 32);
}

TEST_CASE("grouped gemm: a grid is enough for any sizes of groups", "[templates]") {
  const auto contiguous = gemm_grouped_kernel<bfloat16>().definition();
  const auto masked = gemm_masked_kernel<bfloat16>().definition();
  kiln::DeviceLimits d;
  d.multiprocessors = 132;
  const auto plain = kiln::to_values(Gemm{GemmBody::mma, 64, 128, 64, 3, 32, 32, 8, 8});
  const auto blocks = [&](const auto& k, const auto& config, const kiln::Values& problem) {
    return k.launch(config, problem, d).grid.x;
  };
  CHECK(blocks(contiguous, plain, {130, 256, 8, 4}) == 2 * (2 + 4));  // 65, 1, 63 and 1 rows: 5
  CHECK(blocks(contiguous, plain, {2, 256, 8, 100}) == 2 * 2);
  const auto padded = gemm_padded_kernel<bfloat16>().definition();
  CHECK(blocks(padded, plain, {130, 256, 8, 4, 1}) == 2 * (2 + 4));
  CHECK(blocks(padded, plain, {256, 256, 8, 100, 128}) == 2 * 4);       // tiles divide blocks
  CHECK(blocks(padded, plain, {200, 256, 8, 100, 80}) == 2 * (3 + 3));  // 65, 65 and 40 rows: 5
  CHECK(blocks(masked, plain, {65, 256, 8, 4, 1}) == 2 * 4 * 2);
  for (const kiln::Values& none : {kiln::Values{0, 8, 8, 4}, {8, 0, 8, 4}, {8, 8, 8, 0}})
    CHECK(blocks(contiguous, plain, none) == 0);
  CHECK(blocks(padded, plain, {0, 8, 8, 4, 128}) == 0);
  const auto staying =
      kiln::to_values(Gemm{GemmBody::tma, 128, 128, 64, 1, 64, 64, 8, 8, GemmCluster::two_n});
  CHECK(blocks(contiguous, staying, {32768, 4096, 64, 4}) == 132);
  CHECK(blocks(contiguous, staying, {8, 256, 64, 4}) == 2 * 4);
  CHECK(blocks(padded, staying, {32768, 4096, 64, 4, 128}) == 132);
  CHECK(blocks(padded, staying, {256, 256, 64, 4, 128}) == 2 * 2);
}
