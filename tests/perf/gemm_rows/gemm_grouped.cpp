// Kiln's grouped GEMMs in bf16 for scripts/gemm_grouped.py; see gemm_rows.cpp.
#include "kiln/kernels/gemm_grouped.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "for_python.hpp"
#include "kiln/kiln.hpp"

namespace {

using kiln::bfloat16;
using kiln::templates::GroupedProblem, kiln::templates::MaskedProblem;

/// Either kind of problem; `expected` is of the masked one.
class GroupedGemm {
 public:
  virtual ~GroupedGemm() = default;
  virtual std::string tune(const MaskedProblem& problem, double seconds) = 0;
  /// From now on the tuned one is what was `place`th in that tuning, whose config is returned.
  virtual std::string choose(std::size_t place) = 0;
  virtual void launch(bool untuned, kiln::Stream stream, bfloat16* c, const bfloat16* a,
                      const bfloat16* b, const int* sizes) const = 0;
};

template <bool masked>
class GroupedOf final : public GroupedGemm {
 public:
  std::string tune(const MaskedProblem& problem, double seconds) override {
    if constexpr (masked)
      problem_ = problem;
    else
      problem_ = {problem.m, problem.n, problem.k, problem.groups};
    kiln::TuneOptions options;
    options.max_seconds = seconds;
    const kiln::TuneResult result = tuned_.tune(problem_, options);
    candidates_ = result.candidates;
    std::erase_if(candidates_, [](const kiln::Candidate& c) {
      return c.status != kiln::CandidateStatus::measured;
    });
    std::ranges::stable_sort(candidates_, {}, &kiln::Candidate::seconds);
    now_[0].emplace(tuned_.at(problem_));
    now_[1].emplace(untuned_.at(problem_));
    const auto config = kiln::to_values(untuned_.config(problem_));
    char text[4096];
    std::snprintf(text, sizeof text,
                  "{\"seconds\": %.3f, \"evaluated\": %zu, \"failed\": %zu, \"winner\": \"%s\", "
                  "\"untuned\": \"%s\"}",
                  result.wall_seconds, result.evaluated,
                  result.count(kiln::CandidateStatus::wrong_result) +
                      result.count(kiln::CandidateStatus::launch_failed),
                  named(result.winner().config).c_str(),
                  named({config.begin(), config.end()}).c_str());
    return text;
  }
  std::string choose(std::size_t place) override {
    const kiln::Values& config = candidates_.at(place).config;
    now_[0].emplace(
        tuned_.with_config(kiln::from_values<kiln::templates::Gemm>(config)).at(problem_));
    return named(config);
  }
  void launch(bool untuned, kiln::Stream stream, bfloat16* c, const bfloat16* a, const bfloat16* b,
              const int* sizes) const override {
    const Problem& p = problem_;
    if constexpr (masked)
      (*now_[untuned])(stream, c, a, b, sizes, p.m, p.n, p.k, p.groups, p.expected);
    else
      (*now_[untuned])(stream, c, a, b, sizes, p.m, p.n, p.k, p.groups);
  }

 private:
  using Problem = std::conditional_t<masked, MaskedProblem, GroupedProblem>;
  static auto kernel() {
    if constexpr (masked)
      return kiln::templates::gemm_masked_kernel<bfloat16>();
    else
      return kiln::templates::gemm_grouped_kernel<bfloat16>();
  }
  static std::string named(const kiln::Values& config) {
    return kernel().definition().space.describe(config);
  }

  kiln::Runtime tuning_{for_python::options_of(kiln::Mode::tune_now)};
  kiln::Runtime untuning_{for_python::options_of(kiln::Mode::untuned)};
  decltype(tuning_.tuned(kernel())) tuned_ = tuning_.tuned(kernel()),
                                    untuned_ = untuning_.tuned(kernel());
  std::optional<decltype(tuned_.at(Problem{}))> now_[2];
  std::vector<kiln::Candidate> candidates_;
  Problem problem_{};
};

std::string grouped_failure;

}  // namespace

extern "C" {

const char* gemm_grouped_failure() { return grouped_failure.c_str(); }

void* gemm_grouped_open(int masked) {
  GroupedGemm* gemm = nullptr;
  for_python::attempt(grouped_failure, [&] {
    if (masked)
      gemm = new GroupedOf<true>;
    else
      gemm = new GroupedOf<false>;
  });
  return gemm;
}

/// `text` receives JSON: seconds that tuning took, candidates tried, configs.
int gemm_grouped_tune(void* handle, int m, int n, int k, int groups, int expected, double seconds,
                      char* text, std::size_t size) {
  return for_python::attempt(grouped_failure, [&] {
    const std::string told =
        static_cast<GroupedGemm*>(handle)->tune({m, n, k, groups, expected}, seconds);
    std::snprintf(text, size, "%s", told.c_str());
  });
}

/// As gemm_rows_choose().
int gemm_grouped_choose(void* handle, std::size_t place, char* text, std::size_t size) {
  return for_python::attempt(grouped_failure, [&] {
    std::snprintf(text, size, "%s", static_cast<GroupedGemm*>(handle)->choose(place).c_str());
  });
}

/// `which`: 0 tuned, 1 untuned. Asynchronous on `stream`.
int gemm_grouped_launch(void* handle, int which, void* stream, void* c, const void* a,
                        const void* b, const void* sizes) {
  return for_python::attempt(grouped_failure, [&] {
    static_cast<const GroupedGemm*>(handle)->launch(
        which != 0, kiln::Stream{stream}, static_cast<bfloat16*>(c),
        static_cast<const bfloat16*>(a), static_cast<const bfloat16*>(b),
        static_cast<const int*>(sizes));
  });
}
}
