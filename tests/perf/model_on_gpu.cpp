// A whole model's problems tuned within one budget on a GPU, from nothing, against a search of each
// that goes on to its end. What either has chosen is timed side by side afterwards.
//
//   perf_model_on_gpu [SAMPLES [SECONDS...]]    by default 40 of the 200 problems; 20 and 60 s
//
// Printed, for each budget: how long it took, and the time of the unlimited search's choice over
// that of the budget's, the mean and the worst of the samples. More than 1 is noise, or a better
// choice.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kiln/registry.hpp"
#include "kiln/runtime.hpp"
#include "perf.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/tune/kernel_maker.hpp"
#include "runtime/tune/tuner.hpp"

namespace {

using kiln::Values;

struct Problem {
  std::string kernel;
  Values values;

  bool operator<(const Problem& other) const {
    return std::tie(kernel, values) < std::tie(other.kernel, other.values);
  }
};

constexpr double kMostUnlimited = 30;  ///< seconds; a search seldom takes as long

/// The problems of a model of the size of Llama-3 8B, in bf16: four projections, norms, the softmax
/// of two vocabularies, and quantisation, at 1 to 8192 tokens.
std::vector<Problem> model() {
  std::vector<Problem> problems;
  constexpr int kRows[]{1,   2,   4,   8,   16,  24,  32,  48,   64,   80,   96,   112, 128,
                        160, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048, 4096, 8192};
  constexpr int kLayers[][2]{{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
  for (const auto& [n, k] : kLayers)
    for (const int m : kRows) problems.push_back({"gemm", {m, n, k}});
  const auto rows = [&](const char* kernel, std::initializer_list<int> widths) {
    for (const int width : widths)
      for (int m = 1; m <= 8192; m *= 2) problems.push_back({kernel, {m, width}});
  };
  rows("rmsnorm", {2048, 4096, 8192});
  rows("softmax", {32000, 128256});
  rows("quantize_rows", {4096, 14336});
  problems.push_back({"rmsnorm", {8192, 5120}});
  problems.push_back({"rmsnorm", {1024, 5120}});
  return problems;
}

/// A runtime with a store of its own, which begins empty.
class Tuned {
 public:
  Tuned() {
    kiln::RuntimeOptions options;
    options.device = "cuda:0";
    options.store.directory = folder_.path();
    runtime_.emplace(options);
  }

  kiln::DynamicTuned handle(const std::string& kernel) {
    const auto found = handles_.find(kernel);
    if (found != handles_.end()) return found->second;
    return handles_.emplace(kernel, runtime_->tuned(shipped_.make(kernel, "bf16"))).first->second;
  }
  const kiln::Runtime& runtime() const { return *runtime_; }

 private:
  perf::ScratchFolder folder_;
  const kiln::Registry shipped_ = kiln::shipped_kernels();
  std::optional<kiln::Runtime> runtime_;
  std::map<std::string, kiln::DynamicTuned> handles_;
};

std::map<Problem, Values> within(double seconds, const std::vector<Problem>& problems) {
  Tuned tuned;
  std::vector<kiln::TuneJob> jobs;
  for (const Problem& p : problems) jobs.push_back({tuned.handle(p.kernel), p.values});
  kiln::TuneOptions options;
  options.max_seconds = seconds;
  std::vector<kiln::TuneResult> results;
  const double took = perf::seconds([&] { results = tuned.runtime().tune(jobs, options); });
  std::map<Problem, Values> chosen;
  std::size_t measured = 0;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    chosen[problems[i]] = results[i].winner().config;
    measured += results[i].winner().status == kiln::CandidateStatus::measured;
  }
  std::printf("%zu problems within %.0f s: took %.1f s; %zu have been measured\n", problems.size(),
              seconds, took, measured);
  std::fflush(stdout);
  return chosen;
}

/// The second config's time over the first's.
double time_ratio(Tuned& tuned, const Problem& p, const Values& first, const Values& second) {
  if (first == second) return 1;
  const auto engine = kiln::detail::Access::engine(tuned.runtime());
  const kiln::KernelDefinition kernel = kiln::shipped_kernels().make(p.kernel, "bf16");
  const Values bucket = kernel.bucketed(p.values);
  const kiln::TuneOptions options = engine->completed({});
  const auto maker = engine->maker(kernel, bucket, options);
  const std::vector<Values> both{first, second};
  kiln::runtime::TuneContext context;
  context.only = both;
  const kiln::TuneResult result = kiln::runtime::tune(*maker, options, context).result;
  const auto seconds = [&](const Values& config) {
    const auto found = std::ranges::find(result.candidates, config, &kiln::Candidate::config);
    return found == result.candidates.end() ? 0 : found->seconds;
  };
  return seconds(first) > 0 && seconds(second) > 0 ? seconds(second) / seconds(first) : 0;
}

int run(std::size_t samples, const std::vector<double>& budgets) {
  const std::vector<Problem> problems = model();
  std::vector<std::map<Problem, Values>> chosen;
  for (const double seconds : budgets) chosen.push_back(within(seconds, problems));

  Tuned unlimited;
  std::vector<std::vector<std::pair<double, Problem>>> ratios(budgets.size());
  std::map<Problem, Values> best_of;
  double searching = 0;
  samples = std::clamp<std::size_t>(samples, 1, problems.size());
  for (std::size_t s = 0; s < samples; ++s) {
    const Problem& p = problems[s * problems.size() / samples];
    kiln::TuneOptions options;
    options.max_seconds = kMostUnlimited;
    kiln::TuneResult best;
    searching += perf::seconds([&] { best = unlimited.handle(p.kernel).tune(p.values, options); });
    best_of[p] = best.winner().config;
    for (std::size_t b = 0; b < budgets.size(); ++b)
      ratios[b].emplace_back(time_ratio(unlimited, p, chosen[b].at(p), best.winner().config), p);
  }
  std::printf("unlimited searches of %zu of them took %.1f s\n", samples, searching);
  for (std::size_t b = 0; b < budgets.size(); ++b) {
    auto& of = ratios[b];
    std::ranges::sort(of);
    double sum = 0;
    for (const auto& [ratio, p] : of) sum += ratio;
    char text[64];
    std::snprintf(text, sizeof text, "within %.0f s: mean of the unlimited choice", budgets[b]);
    perf::report(text, sum / static_cast<double>(of.size()), "x",
                 budgets[b] >= 60 ? "goal >= 0.98" : "goal >= 0.95");
    std::snprintf(text, sizeof text, "within %.0f s: worst", budgets[b]);
    perf::report(text, of.front().first, "x", budgets[b] >= 60 ? "goal >= 0.93" : "");
    for (std::size_t i = 0; i < std::min<std::size_t>(5, of.size()); ++i) {
      std::printf("    %.3f %s", of[i].first, of[i].second.kernel.c_str());
      for (const std::int64_t v : of[i].second.values)
        std::printf(" %lld", static_cast<long long>(v));
      const Problem& p = of[i].second;
      const kiln::KernelDefinition kernel = kiln::shipped_kernels().make(p.kernel, "bf16");
      std::printf("\n        chosen %s\n        best   %s\n",
                  kernel.space.describe(chosen[b].at(p)).c_str(),
                  kernel.space.describe(best_of.at(p)).c_str());
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<double> budgets;
  for (int i = 2; i < argc; ++i) budgets.push_back(std::atof(argv[i]));
  if (budgets.empty()) budgets = {20, 60};
  return run(argc > 1 ? static_cast<std::size_t>(std::atoi(argv[1])) : 40, budgets);
} catch (const kiln::EnvironmentError& error) {
  std::printf("skipped: %s\n", error.what());
  return 77;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
