// Kiln's GEMMs of 8-bit floats for scripts/gemm_fp8.py; see gemm_rows.cpp.
#include "kiln/kernels/gemm_fp8.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "for_python.hpp"
#include "kiln/kiln.hpp"

namespace {

using kiln::bfloat16, kiln::float8_e4m3;
using kiln::epilogue::BlockScales, kiln::epilogue::RowScales, kiln::epilogue::TensorScales;
using kiln::templates::Fp8Sums;
using kiln::templates::GemmProblem;

struct Told {
  kiln::TuneResult result;
  std::string winner, untuned;
};

/// A GEMM with two arrays of scales.
class Scaled {
 public:
  virtual ~Scaled() = default;
  virtual Told tune(const GemmProblem& problem, const kiln::TuneOptions& options) = 0;
  /// From now on `tuned` is what was `place`th in that tuning, whose config is returned.
  virtual std::string choose(std::size_t place) = 0;
  virtual void launch(bool untuned, kiln::Stream stream, bfloat16* c, const float8_e4m3* a,
                      const float8_e4m3* b, const float* scale_a, const float* scale_b) const = 0;
};

template <class Scales, Fp8Sums sums>
class ScaledBy final : public Scaled {
 public:
  Told tune(const GemmProblem& problem, const kiln::TuneOptions& options) override {
    problem_ = problem;
    Told told{tuned_.tune(problem, options), {}, {}};
    bound_[0].emplace(tuned_.at(problem));
    bound_[1].emplace(untuned_.at(problem));
    auto candidates = told.result.candidates;
    std::erase_if(candidates, [](const kiln::Candidate& c) {
      return c.status != kiln::CandidateStatus::measured;
    });
    std::ranges::sort(candidates, {}, &kiln::Candidate::seconds);
    fastest_.clear();
    for (const kiln::Candidate& c : candidates) fastest_.push_back(c.config);
    told.winner = describe(told.result.winner().config);
    const auto config = kiln::to_values(untuned_.config(problem));
    told.untuned = describe({config.begin(), config.end()});
    return told;
  }
  std::string choose(std::size_t place) override {
    const kiln::Values& config = fastest_.at(place);
    bound_[0].emplace(
        tuned_.with_config(kiln::from_values<kiln::templates::Gemm>(config)).at(problem_));
    return describe(config);
  }
  void launch(bool untuned, kiln::Stream stream, bfloat16* c, const float8_e4m3* a,
              const float8_e4m3* b, const float* scale_a, const float* scale_b) const override {
    (*bound_[untuned])(stream, c, a, b, problem_.m, problem_.n, problem_.k, scale_a, scale_b);
  }

 private:
  static auto kernel() { return kiln::templates::gemm_fp8_kernel<Scales, sums>(); }
  static std::string describe(const kiln::Values& config) {
    return kernel().definition().space.describe(config);
  }

  kiln::Runtime tuning_{for_python::options_of(kiln::Mode::tune_now)};
  kiln::Runtime untuning_{for_python::options_of(kiln::Mode::untuned)};
  decltype(tuning_.tuned(kernel())) tuned_ = tuning_.tuned(kernel()),
                                    untuned_ = untuning_.tuned(kernel());
  std::optional<decltype(tuned_.at(GemmProblem{}))> bound_[2];
  std::vector<kiln::Values> fastest_;
  GemmProblem problem_{};
};

std::string fp8_failure;

}  // namespace

extern "C" {

const char* gemm_fp8_failure() { return fp8_failure.c_str(); }

/// `kind`: 0 one scale for each operand, and exact sums; 1 a scale for each row, and sums by the
/// tensor cores alone; 2 scales of blocks.
void* gemm_fp8_open(int kind) {
  Scaled* scaled = nullptr;
  for_python::attempt(fp8_failure, [&] {
    if (kind == 1)
      scaled = new ScaledBy<RowScales, Fp8Sums::fast>;
    else if (kind == 2)
      scaled = new ScaledBy<BlockScales, Fp8Sums::scaled>;
    else
      scaled = new ScaledBy<TensorScales, Fp8Sums::exact>;
  });
  return scaled;
}

void gemm_fp8_close(void* handle) { delete static_cast<Scaled*>(handle); }

/// `text` receives JSON: seconds that tuning took, candidates tried, configs.
int gemm_fp8_tune(void* handle, int m, int n, int k, double max_seconds, char* text,
                  std::size_t size) {
  return for_python::attempt(fp8_failure, [&] {
    kiln::TuneOptions options;
    options.max_seconds = max_seconds;
    const Told told = static_cast<Scaled*>(handle)->tune({m, n, k}, options);
    std::snprintf(text, size,
                  "{\"seconds\": %.3f, \"evaluated\": %zu, \"failed\": %zu, \"winner\": \"%s\", "
                  "\"untuned\": \"%s\"}",
                  told.result.wall_seconds, told.result.evaluated,
                  told.result.count(kiln::CandidateStatus::wrong_result) +
                      told.result.count(kiln::CandidateStatus::launch_failed),
                  told.winner.c_str(), told.untuned.c_str());
  });
}

/// As gemm_rows_choose().
int gemm_fp8_choose(void* handle, std::size_t place, char* text, std::size_t size) {
  return for_python::attempt(fp8_failure, [&] {
    std::snprintf(text, size, "%s", static_cast<Scaled*>(handle)->choose(place).c_str());
  });
}

/// `which`: 0 tuned, 1 untuned. Asynchronous on `stream`.
int gemm_fp8_launch(void* handle, int which, void* stream, void* c, const void* a, const void* b,
                    const void* scale_a, const void* scale_b) {
  return for_python::attempt(fp8_failure, [&] {
    static_cast<const Scaled*>(handle)->launch(
        which != 0, kiln::Stream{stream}, static_cast<bfloat16*>(c),
        static_cast<const float8_e4m3*>(a), static_cast<const float8_e4m3*>(b),
        static_cast<const float*>(scale_a), static_cast<const float*>(scale_b));
  });
}
}
