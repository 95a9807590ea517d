// Contextual tuning: a step of two kernels, the first of which changes its input. Timing it alone,
// again and again, would spoil the data; timing the second alone would find a cache that the first
// does not leave behind. So the step is run as a whole, and both are chosen in it.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <kiln/kiln.hpp>

int main() {
  kiln::Runtime runtime;
  auto add = runtime.tuned(kiln::shipped_kernels().make("residual_add", "f32"));
  auto norm = runtime.tuned(kiln::shipped_kernels().make("rmsnorm", "f32"));

  const int rows = 64, hidden = 1024;
  const std::vector<float> zeros(rows * hidden), ones(rows * hidden, 1.0f);
  auto x = runtime.array(zeros), update = runtime.array(ones), y = runtime.array(zeros);
  auto weight = runtime.array(std::vector<float>(hidden, 3.0f));

  const auto step = [&](kiln::Region& region) {
    const kiln::Stream stream{};
    region(add, stream, {rows, hidden}, x.data(), x.data(), update.data(), rows, hidden);
    region(norm, stream, {rows, hidden}, y.data(), x.data(), weight.data(), rows, hidden, 1e-5f);
  };

  kiln::RegionOptions options;
  options.max_evaluations = 12;  // of each kernel
  options.before = [&] { x.upload(zeros); };
  options.check = [&]() -> std::string {  // x is 1 everywhere, so y is the weight
    for (const float value : y.download())
      if (!(std::abs(value - 3.0f) < 1e-3f)) return "y is " + std::to_string(value);
    return "";
  };
  const kiln::RegionResult result = kiln::tune_region(runtime, step, options);
  for (const kiln::RegionSite& site : result.sites)
    std::printf("%-12s %s, %.2f times the default's speed\n", site.tuned.kernel.c_str(),
                site.tuned.describe(site.tuned.winner()).c_str(), site.tuned.speedup());
  std::printf("after %zu runs\n", result.runs);

  kiln::Region production;  // the same step, with what was chosen; nothing is measured
  x.upload(zeros);
  step(production);
  runtime.synchronize();
  return options.check().empty() && result.tuned() ? 0 : 1;
}
