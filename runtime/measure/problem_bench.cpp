#include "runtime/measure/problem_bench.hpp"

#include <algorithm>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

std::string ProblemBench::of_draw(std::size_t draw, std::string text) const {
  if (text.empty() || draws() == 1) return text;
  return detail::format("draw {} of {}: {}", draw, draws(), text);
}

Verdict ProblemBench::verify_each(const std::function<Verdict(std::size_t)>& verify) const {
  Verdict all;
  for (std::size_t draw = 0; draw < draws() && all.right; ++draw) {
    const double worst = all.max_error;
    all = verify(draw);
    all.max_error = std::max(all.max_error, worst);
    all.why = of_draw(draw, std::move(all.why));
  }
  return all;
}

std::vector<KernelData> make_draws(const KernelDefinition& kernel,
                                   std::span<const std::int64_t> problem, std::uint64_t seed) {
  std::vector<KernelData> draws;
  const std::size_t count = std::max<std::size_t>(1, kernel.draws.size());
  for (std::size_t draw = 0; draw < count; ++draw)
    draws.push_back(make_data(kernel, problem, seed, draw));
  return draws;
}

std::vector<KernelData> make_expected_draws(const KernelDefinition& kernel,
                                            std::span<const std::int64_t> problem,
                                            std::uint64_t seed) {
  std::vector<KernelData> draws = make_draws(kernel, problem, seed);
  if (!kernel.device_reference)
    for (KernelData& data : draws) compute_expected(data);
  return draws;
}

}  // namespace kiln::runtime
