// sort_by_expert on the host target, in all its shapes, against std::stable_sort; choices that make
// no sense lead nowhere; and a grouped GEMM of what it has sorted.
#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kiln/kernels/sort_by_expert.hpp"
#include "kiln/kiln.hpp"
#include "same_bits.hpp"
#include "template_test.hpp"

using namespace kiln::templates;

namespace {

/// Elements that a kernel writes, between those that it must not. What they begin with is nothing
/// that it writes.
class Written {
 public:
  explicit Written(std::size_t count) : all_(count + 2 * kMargin, kPoison) {}

  int* data() { return all_.data() + kMargin; }
  std::vector<int> elements() const { return {all_.begin() + kMargin, all_.end() - kMargin}; }
  bool margins_intact() const {
    const auto intact = [](auto from, auto to) {
      return std::all_of(from, to, [](int i) { return i == kPoison; });
    };
    return intact(all_.begin(), all_.begin() + kMargin) && intact(all_.end() - kMargin, all_.end());
  }

 private:
  static constexpr std::ptrdiff_t kMargin = 1001;  // odd: aligned to an int alone
  static constexpr int kPoison = 0x5a5a5a5a;

  std::vector<int> all_;
};

struct Sorted {
  std::vector<int> ends, tokens, places;
  bool operator==(const Sorted&) const = default;
};

std::size_t size(int count) { return static_cast<std::size_t>(count); }

Sorted sorted_by_library(const SortByExpertProblem& p, const std::vector<int>& choices) {
  Sorted sorted{std::vector<int>(size(p.groups)), std::vector<int>(choices.size(), -1),
                std::vector<int>(choices.size(), -1)};
  std::vector<std::size_t> order(choices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t i) { return choices[i] < 0 || choices[i] >= p.groups; });
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return choices[a] < choices[b]; });
  for (std::size_t row = 0; row < order.size(); ++row) {
    sorted.tokens[row] = static_cast<int>(order[row] / size(p.top));
    sorted.places[order[row]] = static_cast<int>(row);
  }
  for (int g = 0; g < p.groups; ++g)
    sorted.ends[size(g)] = static_cast<int>(
        std::count_if(order.begin(), order.end(), [&](std::size_t i) { return choices[i] <= g; }));
  return sorted;
}

/// The choices of a problem, of each kind that there is.
std::vector<std::vector<int>> kinds_of_choices(const SortByExpertProblem& p) {
  std::mt19937 random(7);
  const auto drawn = [&](const std::function<int()>& draw) {
    std::vector<int> choices(p.choices());
    std::generate(choices.begin(), choices.end(), draw);
    return choices;
  };
  const auto below = [&](int bound) {
    return std::uniform_int_distribution<int>(0, std::max(bound, 1) - 1)(random);
  };
  using Int = std::numeric_limits<int>;
  const int senseless[] = {Int::min(),   Int::max(), -1,      p.groups,
                           p.groups + 1, -p.groups,  1 << 30, -(1 << 30)};
  return {drawn([&] { return below(p.groups); }),
          drawn([&] { return below(below(below(p.groups) + 1) + 1); }),  // few get most
          drawn([&] { return below(p.groups) / 2 * 2; }),                // every second none
          drawn([&] { return p.groups - 1; }),                           // one gets all
          drawn([&] { return -1; }),                                     // all are dropped
          drawn([&] { return below(3) ? below(p.groups) : senseless[below(8)]; })};
}

/// Ways of the kernel: one block and several, of one warp and many, that walk and that do not.
const std::vector<SortByExpert> kWays{
    sort_by_expert_kernel().space.default_config(kiln::Target::Kind::cuda),
    sort_by_expert_kernel().space.default_config(kiln::Target::Kind::host),
    {.block = 32, .items = 1, .blocks = 1},
    {.block = 64, .items = 2, .blocks = 1},
    {.block = 128, .items = 8, .blocks = 1},
    {.block = 1024, .items = 1, .blocks = 1},
    {.block = 64, .items = 1, .blocks = 32},
    {.block = 256, .items = 2, .blocks = 16}};

const std::vector<SortByExpertProblem> kSizes{
    {0, 2, 8},     {3, 0, 8},   {0, 0, 0},    {5, 2, 0},      {1, 1, 1},     {1, 8, 8},
    {2, 8, 1},     {7, 1, 3},   {31, 1, 128}, {33, 2, 128},   {129, 8, 128}, {65, 8, 384},
    {512, 1, 384}, {777, 8, 8}, {4099, 2, 5}, {301, 3, 1000}, {50, 4, 4096}};

}  // namespace

TEST_CASE("sort_by_expert: each way sorts as the library does, and writes nothing else",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto kernel = sort_by_expert_kernel();
  const kiln::DynamicSpace space = kernel.space.dynamic();
  const kiln::Stream stream{};
  for (const SortByExpert& way : kWays) {
    const auto sort = runtime.tuned(kernel).with_config(way);
    for (const SortByExpertProblem& p : kSizes) {
      if (space.violated(kiln::to_values(way), kiln::to_values(p), {})) continue;
      int kind = 0;
      for (const std::vector<int>& choices : kinds_of_choices(p)) {
        CAPTURE(way.block, way.items, way.blocks, p.count, p.top, p.groups, kind++);
        const Sorted want = sorted_by_library(p, choices);
        Written ends(size(p.groups)), tokens(choices.size()), places(choices.size());
        sort(stream, ends.data(), tokens.data(), places.data(), choices.data(), p.count, p.top,
             p.groups);
        runtime.synchronize(stream);
        CHECK((Sorted{ends.elements(), tokens.elements(), places.elements()} == want));
        CHECK((ends.margins_intact() && tokens.margins_intact() && places.margins_intact()));
        if (&way != &kWays.front()) continue;
        Written by_reference[3] = {Written(size(p.groups)), Written(choices.size()),
                                   Written(choices.size())};
        kernel.reference(by_reference[0].data(), by_reference[1].data(), by_reference[2].data(),
                         choices.data(), p.count, p.top, p.groups);
        CHECK((Sorted{by_reference[0].elements(), by_reference[1].elements(),
                      by_reference[2].elements()} == want));
      }
    }
  }
}

TEST_CASE("sort_by_expert: data, verdicts and refusals", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  const auto sort = runtime.tuned(sort_by_expert_kernel());
  for (const SortByExpertProblem& p : kSizes) {
    const kiln::Verification v = sort.verify(p);
    INFO(p.count << " x " << p.top << " among " << p.groups << ": " << v.why);
    CHECK(v.right);
  }
  auto unstable = sort_by_expert_kernel();
  unstable.reference = [](int* ends, int* tokens, int* places, const int* choices, int count,
                          int top, int groups) {
    sort_by_expert_kernel().reference(ends, tokens, places, choices, count, top, groups);
    std::swap(tokens[0], tokens[1]);
  };
  CHECK_FALSE(runtime.tuned(unstable).verify({30, 2, 4}).right);

  int* const none = nullptr;
  const auto refused = [&](int count, int top, int groups) {
    return template_test::refusal(
        [&] { sort({}, none, none, none, static_cast<const int*>(none), count, top, groups); });
  };
  for (const auto& [count, top, groups] :
       {std::array{-1, 8, 8}, std::array{8, -1, 8}, std::array{8, 8, -1}})
    CHECK_THAT(refused(count, top, groups), Catch::Contains("is negative"));
  CHECK_THAT(refused(8, 8, kMostExperts + 1), Catch::Contains("4097 groups, and at most 4096"));
  CHECK_THAT(refused(1 << 28, 8, 8), Catch::Contains("more than 2^31 - 1 choices"));
  CHECK(refused(0, 8, 0) == "accepted");
}

TEST_CASE("sort_by_expert: all configs that a search tries leave the same bits",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  const kiln::test::SameBits found = kiln::test::same_bits(
      kiln::Runtime(options), sort_by_expert_kernel().definition(), {500, 8, 128}, 8);
  CHECK(found.different == "");
  CHECK(found.compared >= 4);
}

TEST_CASE("sort_by_expert: a grouped GEMM multiplies each token by its experts' matrices",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime = template_test::host_runtime();
  constexpr int kCount = 37, kTop = 3, kGroups = 5, kN = 8, kK = 16, kRows = kCount * kTop;
  template_test::Array<float> x(kCount * kK), b(kGroups * kN * kK), a(kRows * kK), c(kRows * kN);
  x.integers(2, 1);
  b.integers(2, 2);
  const std::vector<int> choices = kinds_of_choices({kCount, kTop, kGroups}).back();
  std::vector<int> ends(kGroups), tokens(kRows), places(kRows);
  const kiln::Stream stream{};
  const auto sort = runtime.tuned(sort_by_expert_kernel());
  sort(stream, ends.data(), tokens.data(), places.data(), choices.data(), kCount, kTop, kGroups);
  runtime.synchronize(stream);
  for (int row = 0; row < kRows; ++row)
    for (int l = 0; l < kK; ++l)
      a[size(row * kK + l)] = tokens[size(row)] < 0 ? 0 : x[size(tokens[size(row)] * kK + l)];
  const auto gemm = runtime.tuned(gemm_grouped_kernel<float>());
  gemm(stream, c.data(), static_cast<const float*>(a.data()), static_cast<const float*>(b.data()),
       static_cast<const int*>(ends.data()), kRows, kN, kK, kGroups);
  runtime.synchronize(stream);
  int wrong = 0, multiplied = 0;
  for (int choice = 0; choice < kRows; ++choice) {
    const int expert = choices[size(choice)], row = places[size(choice)];
    CHECK((row < 0) == (expert < 0 || expert >= kGroups));
    if (row < 0) continue;
    for (int j = 0; j < kN; ++j) {
      float sum = 0;
      for (int l = 0; l < kK; ++l)
        sum += x[size(choice / kTop * kK + l)] * b[size((expert * kN + j) * kK + l)];
      wrong += c[size(row * kN + j)] != sum;
      ++multiplied;
    }
  }
  CHECK(wrong == 0);
  CHECK(multiplied > 100);
}
