// How often tuning a kernel again picks the same config, and how far its picks are from the best:
// race and final are repeated on fresh data, then a long final of all that were near tells the
// truth. Usage: picks KERNEL TYPE FIELD=VALUE... [repeats=N] [long=SECONDS] [final=SECONDS]
#include <cmath>
#include <cstring>
#include <exception>
#include <map>

#include "kiln/registry.hpp"
#include "perf.hpp"
#include "runtime/builder.hpp"
#include "runtime/devices.hpp"
#include "runtime/finals.hpp"

namespace {

using kiln::Values;
using kiln::runtime::Contestant;
using kiln::runtime::DeviceWorkload;
using kiln::runtime::FinalsOptions;
using kiln::runtime::FinalsResult;
using kiln::runtime::MeasureOptions;

struct Bench {
  kiln::KernelDefinition kernel;
  Values problem;
  std::shared_ptr<kiln::runtime::Device> device = kiln::runtime::open_device("host", {});
  std::vector<Values> configs;
  std::vector<std::shared_ptr<kiln::runtime::LoadedKernel>> loaded;

  /// Only right candidates take part; the default comes first.
  void build() {
    std::vector<Values> all{Values{}};
    for (const kiln::Parameter& p : kernel.space.parameters()) {
      std::vector<Values> longer;
      for (const Values& v : all)
        for (const std::int64_t value : p.values) {
          longer.push_back(v);
          longer.back().push_back(value);
        }
      all = std::move(longer);
    }
    const Values base = kernel.space.default_config(kiln::Target::Kind::host);
    std::vector<Values> allowed{base};
    for (const Values& v : all)
      if (v != base && !kernel.space.violated(v, problem, device->info().limits))
        allowed.push_back(v);
    kiln::runtime::Builder builder(
        std::make_shared<kiln::cache::Store>(kiln::StoreOptions{.disk = false}),
        [&](kiln::Target::Kind kind) { return kiln::runtime::make_compiler(kind, *device); }, {},
        2);
    const auto builds = builder.build_all(kernel, allowed, device->info().target, {});
    DeviceWorkload workload(kernel, problem, device, 1);
    for (std::size_t i = 0; i < allowed.size(); ++i) {
      if (!builds[i].binary()) continue;
      const auto geometry = kernel.geometry(allowed[i], problem);
      auto one = device->load(*builds[i].binary(), geometry.shared_bytes);
      try {
        if (!workload.verify({}, [&] { device->launch(*one, geometry, {}, workload.arguments()); })
                 .right)
          continue;
      } catch (const kiln::Error&) {
        continue;
      }
      configs.push_back(allowed[i]);
      loaded.push_back(std::move(one));
    }
  }

  Contestant contestant(std::size_t i) const {
    Contestant c;
    c.candidate = i;
    c.kernel = loaded[i];
    c.geometry = kernel.geometry(configs[i], problem);
    return c;
  }
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) return 1;
  Bench bench;
  bench.kernel = kiln::shipped_kernels().make(argv[1], argv[2]);
  std::map<std::string, std::int64_t> fields;
  double long_seconds = 20, final_seconds = 2;
  int repeats = 10;
  for (int i = 3; i < argc; ++i) {
    const std::string text = argv[i];
    const auto split = text.find('=');
    const std::string name = text.substr(0, split);
    const double value = std::atof(text.c_str() + split + 1);
    if (name == "long")
      long_seconds = value;
    else if (name == "final")
      final_seconds = value;
    else if (name == "repeats")
      repeats = static_cast<int>(value);
    else
      fields[name] = static_cast<std::int64_t>(value);
  }
  bench.problem = bench.kernel.problem(fields);
  bench.build();
  std::printf("%zu candidates\n", bench.configs.size());

  std::vector<std::size_t> picks;
  std::map<std::size_t, int> near;  // in how many repeats a config was a finalist
  near[0] = 1;
  for (int r = 0; r < repeats; ++r) {
    DeviceWorkload workload(bench.kernel, bench.problem, bench.device, 1);
    std::vector<Contestant> all;
    for (std::size_t i = 0; i < bench.configs.size(); ++i) all.push_back(bench.contestant(i));
    FinalsResult result;
    std::vector<Contestant> finalists;
    const double race = perf::seconds([&] {
      const auto report = kiln::runtime::measure(*bench.device, workload, all,
                                                 MeasureOptions{.sample_seconds = 2e-4},
                                                 [](std::size_t c) { return c == 0; }, {});
      for (const auto& w : report.warnings) std::printf("  %s\n", w.c_str());
    });
    const auto score = [](const Contestant& c) { return kiln::runtime::quantile(c.samples, 0.2); };
    std::vector<double> times;
    for (const Contestant& c : all)
      if (c.failure.empty() && c.samples.size() > 3) times.push_back(score(c));
    std::sort(times.begin(), times.end());
    const double cut =
        std::min(times[0] * 1.05, times[std::min<std::size_t>(times.size(), 12) - 1]);
    for (const Contestant& c : all)
      if (c.candidate == 0 || (c.samples.size() > 3 && score(c) <= cut)) {
        finalists.push_back(c);
        near[c.candidate] += c.candidate != 0;
      }
    const double last = perf::seconds([&] {
      result = kiln::runtime::finals(*bench.device, workload, finalists,
                                     FinalsOptions{.seconds = final_seconds}, {});
    });
    picks.push_back(finalists[result.winner].candidate);
    std::printf("pick %zu, %.4g ms (%s) of %zu finalists, %zu rounds; race %.2f s, final %.2f s\n",
                picks.back(), 1e3 * kiln::runtime::median(finalists[result.winner].samples),
                bench.kernel.space.describe(bench.configs[picks.back()]).c_str(), finalists.size(),
                result.rounds, race, last);
    for (const auto& w : result.warnings) std::printf("  %s\n", w.c_str());
  }

  // The truth: several finals without end, each on fresh data, over all that were near.
  std::map<std::size_t, std::vector<double>> logs;
  constexpr int kParts = 8;
  for (int part = 0; part < kParts; ++part) {
    DeviceWorkload workload(bench.kernel, bench.problem, bench.device, 1);
    std::vector<Contestant> finalists;
    for (const auto& [candidate, count] : near) finalists.push_back(bench.contestant(candidate));
    FinalsOptions options;
    options.seconds = long_seconds / kParts;
    options.tie_band = 10;  // nobody leaves
    options.must_beat = 0;
    options.least_rounds = 20;
    double spent = 0;
    for (std::vector<std::vector<double>> samples(finalists.size()); spent < options.seconds;) {
      // One look at a time, so that the certain order does not end it.
      options.seconds = long_seconds / kParts;
      spent += perf::seconds(
          [&] { kiln::runtime::finals(*bench.device, workload, finalists, options, {}); });
      for (std::size_t i = 0; i < finalists.size(); ++i)
        for (std::size_t s = 0; s < finalists[i].samples.size(); ++s)
          logs[finalists[i].candidate].push_back(std::log(finalists[i].samples[s]));
    }
  }
  double best = 1e30;
  std::map<std::size_t, double> truth;
  for (auto& [candidate, l] : logs) {
    truth[candidate] = kiln::runtime::quantile(l, 0.2) - kiln::runtime::quantile(logs[0], 0.2);
    best = std::min(best, truth[candidate]);
  }
  double mean = 0, worst = 0, over_default = -1e30;
  std::map<std::size_t, int> votes;
  for (const std::size_t p : picks) {
    const double regret = std::expm1(truth.at(p) - best);
    mean += regret / static_cast<double>(picks.size());
    worst = std::max(worst, regret);
    over_default = std::max(over_default, truth.at(p));
    ++votes[p];
  }
  int agree = 0;
  for (const auto& [p, count] : votes) {
    agree = std::max(agree, count);
    std::printf("  %2d x %s: %.2f %% over the best\n", count,
                bench.kernel.space.describe(bench.configs[p]).c_str(),
                100 * std::expm1(truth.at(p) - best));
  }
  std::printf("  default: %.2f %% over the best; %zu rounds of truth\n", 100 * std::expm1(-best),
              logs.begin()->second.size());
  perf::report("regret, mean", 100 * mean, "%", "goal <= 0.5");
  perf::report("regret, worst", 100 * worst, "%", "goal <= 2");
  perf::report("slowest pick against the default", 100 * std::expm1(over_default), "%",
               "goal <= 0");
  perf::report("picks that agree", 100.0 * agree / static_cast<double>(picks.size()), "%");
} catch (const std::exception& error) {
  std::printf("skipped: %s\n", error.what());
  return 77;
}
