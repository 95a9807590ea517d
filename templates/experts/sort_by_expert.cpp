// Host half of sort_by_expert.hpp.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/gemm/grouped/gemm_grouped_host.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

namespace {

constexpr std::int64_t kMostChoices = 2147483647;
/// Bytes of dynamic shared memory that leave room in 48 KiB for the sums of a block's warps.
constexpr unsigned kMostCounterBytes = 48 * 1024 - 32 * sizeof(int);
constexpr SortByExpert kSortDefault{.block = 512, .items = 4, .blocks = 16};
/// A thread takes turns with the others of its block.
constexpr SortByExpert kSortHostDefault{.block = 32, .items = 4, .blocks = 16};

constexpr Space<SortByExpert, SortByExpertProblem> sort_space() {
  using C = const SortByExpert&;
  using P = const SortByExpertProblem&;
  using D = const DeviceLimits&;
  return Space<SortByExpert, SortByExpertProblem>{kSortDefault}
      .default_on(Target::Kind::host, kSortHostDefault)
      .values(&SortByExpert::block, {32, 64, 128, 256, 512, 1024})
      .values_on(Target::Kind::host, &SortByExpert::block, {32, 64, 128})
      .values(&SortByExpert::items, {1, 2, 4, 8})
      .values(&SortByExpert::blocks, {1, 16, 32, 64, 128})
      .where("a block's threads fit the device",
             [](C c, P, D d) { return c.threads() <= d.max_threads_per_block; })
      .where("counters of 4 bytes, one for each warp and expert, fit 48 KiB of shared memory",
             [](C c, P p, D) { return c.shared_bytes(p.groups) <= kMostCounterBytes; })
      .where("each of more than 16 blocks has a choice for each thread",
             [](C c, P p, D) {
               return c.blocks <= 16 ||
                      p.choices() / static_cast<unsigned>(c.blocks) >= unsigned(c.block);
             })
      .where_on(Target::Kind::cuda, "one block alone sorts at most 32768 choices",
                [](C c, P p, D) { return c.split() || p.choices() <= 32768; })
      .checked();
}

/// One block if there are few choices, and no more warps than have room for their counters.
std::optional<SortByExpert> sort_default(const SortByExpertProblem& p, const DeviceLimits& d) {
  SortByExpert c = d.on_host() ? kSortHostDefault : kSortDefault;
  const unsigned choices = p.choices();
  if (choices <= 8192)
    c.blocks = 1;
  else if (!d.on_host() && choices >= 64 * static_cast<unsigned>(c.block))
    c.blocks = 64;
  while (c.block > 32 && c.shared_bytes(p.groups) > kMostCounterBytes) c.block /= 2;
  return c;
}

SortByExpertProblem sort_bucket(const SortByExpertProblem& p) {
  if (p.count < 0 || p.top < 0 || p.groups < 0)
    throw UserError("sort_by_expert: count, top or the number of groups is negative");
  if (p.groups > kMostExperts)
    throw UserError("sort_by_expert: there are " + std::to_string(p.groups) +
                    " groups, and at most " + std::to_string(kMostExperts) + " can be sorted by");
  if (std::int64_t{p.count} * p.top > kMostChoices)
    throw UserError("sort_by_expert: there are more than 2^31 - 1 choices");
  const int most = static_cast<int>(kMostChoices / std::max(p.top, 1));
  return {std::min(count_bucket(p.count), most), p.top, p.groups};
}

Launch sort_launch(const SortByExpert& c, const SortByExpertProblem& p) {
  const bool empty = p.choices() == 0 && p.groups == 0;
  return {{empty ? 0 : c.grid(p.choices())},
          {static_cast<unsigned>(c.threads())},
          c.shared_bytes(p.groups)};
}

/// Experts get as many as grouped GEMMs draw, and the rows of neighbouring choices lie far apart.
/// With the third draw each 50th choice is dropped.
std::vector<int> drawn_choices(const SortByExpertProblem& p, std::size_t draw) {
  // A prime that divides few numbers of choices: of the others each row comes once.
  constexpr std::int64_t kStep = 1000003;
  const std::int64_t all = p.choices();
  std::vector<int> by_row(static_cast<std::size_t>(all), -1);
  std::size_t row = 0;
  const std::vector<int> rows =
      drawn_rows(p.groups, static_cast<double>(all), p.count * p.top, draw);
  for (int g = 0; g < p.groups; ++g)
    for (int i = 0; i < rows[static_cast<std::size_t>(g)]; ++i) by_row[row++] = g;
  std::vector<int> choices;
  choices.reserve(by_row.size());
  for (std::int64_t i = 0; i < all; ++i) {
    const int expert = by_row[static_cast<std::size_t>(i * kStep % all)];
    const bool dropped = draw == 2 && i % 50 == 49;
    choices.push_back(!dropped ? expert : i % 100 == 49 ? -1 : p.groups);
  }
  return choices;
}

void sort_reference(int* ends, int* tokens, int* places, const int* choices, int count, int top,
                    int groups) {
  const std::ptrdiff_t all = std::ptrdiff_t{count} * top;
  const auto counts = [&](int expert) { return expert >= 0 && expert < groups; };
  std::fill_n(ends, groups, 0);
  for (std::ptrdiff_t i = 0; i < all; ++i)
    if (counts(choices[i])) ++ends[choices[i]];
  std::vector<int> next;  // row of each expert
  int end = 0;
  for (int g = 0; g < groups; ++g) {
    next.push_back(end);
    end = ends[g] += end;
  }
  std::fill(tokens + end, tokens + all, -1);
  for (std::ptrdiff_t i = 0; i < all; ++i) {
    places[i] = counts(choices[i]) ? next[static_cast<std::size_t>(choices[i])]++ : -1;
    if (places[i] >= 0) tokens[places[i]] = static_cast<int>(i / top);
  }
}

/// On the host: nanoseconds, of which a choice's match takes most, because lanes take turns at it.
/// A GPU is left to the general model.
double sort_cost(const SortByExpert& c, const SortByExpertProblem& p, const DeviceLimits& d) {
  if (!d.on_host()) return std::numeric_limits<double>::quiet_NaN();
  const double blocks = c.grid(p.choices()), warps = blocks * c.warps();
  const double walks = c.split() ? 3 : 2;
  const double choices = walks * p.choices() * (50 + 4.0 / c.items);
  const double counters = 3.0 * warps * p.groups + (c.split() ? blocks * blocks * p.groups : 0);
  const double turns = 2000.0 * walks * warps;
  return (choices + counters + turns) / std::min<double>(blocks, d.usable_multiprocessors());
}

}  // namespace

SortByExpertKernel sort_by_expert_kernel() {
  using C = const SortByExpert&;
  using P = const SortByExpertProblem&;
  constexpr auto split = [](C c) { return c.split(); };
  return {.name = "sort_by_expert",
          .source = {.file = templates_dir() / "experts/sort_by_expert.cuh"},
          .entry = "kiln::templates::sort_by_expert",
          .config_type = "kiln::templates::SortByExpert",
          .space = sort_space(),
          .launch = sort_launch,
          .workspace = {.size =
                            [](C c, P p, const DeviceLimits&) {
                              return WorkspaceSize{.bytes = std::size_t{c.grid(p.choices())} *
                                                            static_cast<std::size_t>(p.groups) *
                                                            sizeof(int)};
                            },
                        .only_if = split},
          .steps = {{.entry = "kiln::templates::sort_by_expert_place",
                     .launch = sort_launch,
                     .only_if = split}},
          .problem = [](int*, int*, int*, const int*, int count, int top,
                        int groups) { return SortByExpertProblem{count, top, groups}; },
          .relations = {{4, "count"}, {5, "top"}, {6, "groups"}},
          .bucket = sort_bucket,
          .workload =
              [](P p, Workload& w) {
                const std::vector<int> choices = drawn_choices(p, w.draw());
                w.output<int>(static_cast<std::size_t>(p.groups));
                w.output<int>(choices.size()).output<int>(choices.size());
                w.input<int>(std::span<const int>(choices));
                w.scalar(p.count).scalar(p.top).scalar(p.groups);
              },
          .draws = kGroupDraws,
          .reference = sort_reference,
          .tolerance = {.relative = 0, .absolute = 0},
          .bytes = [](P p) { return sizeof(int) * (3.0 * p.choices() + p.groups); },
          .cost = sort_cost,
          .default_for = sort_default,
          .numerics = [](C, P) { return "no sums"; }};
}

}  // namespace kiln::templates
