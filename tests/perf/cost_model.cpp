// How well the static cost model orders a kernel's configs: Spearman's rank correlation with the
// times that an exhaustive search on the host measures, and how good its first picks are.
//   cost_model [KERNEL TYPE FIELD=VALUE,...]...
#include "runtime/tune/cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/registry.hpp"
#include "kiln/runtime.hpp"

using namespace kiln;

namespace {

/// Ranks from 0; equal values share their mean.
std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> result(values.size());
  for (std::size_t i = 0, j = 0; i < order.size(); i = j) {
    while (j < order.size() && values[order[j]] == values[order[i]]) ++j;
    for (std::size_t k = i; k < j; ++k) result[order[k]] = static_cast<double>(i + j - 1) / 2;
  }
  return result;
}

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double mean = static_cast<double>(x.size() - 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xy / std::sqrt(xx * yy);
}

struct Job {
  std::string kernel, type, problem;
};

Values parse(const KernelDefinition& kernel, const std::string& text) {
  std::map<std::string, std::int64_t> named;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size()),
                      is = text.find('=', begin);
    named[text.substr(begin, is - begin)] = std::stoll(text.substr(is + 1, end - is - 1));
    begin = end + 1;
  }
  return kernel.problem(named);
}

/// Fraction of the best speed among the `count` configs of least cost.
double best_of(std::size_t count, const std::vector<double>& cost,
               const std::vector<double>& seconds) {
  std::vector<std::size_t> order(cost.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return cost[a] < cost[b]; });
  double found = INFINITY;
  for (std::size_t i = 0; i < std::min(count, order.size()); ++i)
    found = std::min(found, seconds[order[i]]);
  return *std::min_element(seconds.begin(), seconds.end()) / found;
}

void show(const Runtime& runtime, const Job& job) {
  const KernelDefinition kernel = shipped_kernels().make(job.kernel, job.type);
  const Values problem = parse(kernel, job.problem);
  TuneOptions options;
  options.strategy = "exhaustive";
  options.retune = true;
  const TuneResult result = runtime.tuned(kernel).tune(problem, options);
  KernelDefinition silent = kernel;
  silent.cost = nullptr;
  const runtime::CostModel own(kernel, result.problem, runtime.device());
  const runtime::CostModel general(silent, result.problem, runtime.device());
  std::vector<double> seconds, by_own, by_general;
  for (const Candidate& c : result.candidates)
    if (c.status == CandidateStatus::measured) {
      seconds.push_back(c.seconds);
      by_own.push_back(own.seconds(c.config));
      by_general.push_back(general.seconds(c.config));
    }
  for (const auto& [name, cost] : {std::pair{"own", &by_own}, std::pair{"general", &by_general}})
    std::printf("%-13s %-5s %-26s %4zu configs  %-8s rho %6.3f  first pick %.2f, best of 5 %.2f\n",
                job.kernel.c_str(), job.type.c_str(), job.problem.c_str(), seconds.size(), name,
                spearman(*cost, seconds), best_of(1, *cost, seconds), best_of(5, *cost, seconds));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<Job> jobs = {{"vector_add", "f32", "n=200000"},
                           {"residual_add", "bf16", "rows=64,hidden=2048"},
                           {"rmsnorm", "f32", "rows=16,hidden=8192"},
                           {"rmsnorm", "f16", "rows=512,hidden=2048"}};
  if (argc > 1) jobs.clear();
  for (int i = 1; i + 2 < argc; i += 3) jobs.push_back({argv[i], argv[i + 1], argv[i + 2]});
  RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  const Runtime runtime(options);
  for (const Job& job : jobs) show(runtime, job);
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
