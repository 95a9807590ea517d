#include "runtime/measure/problem_bench.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

std::string ProblemBench::of_draw(std::size_t draw, std::string text) const {
  if (text.empty() || draws() == 1) return text;
  return detail::format("draw {} of {}: {}", draw, draws(), text);
}

void ProblemBench::for_each_draw(const std::function<void(std::size_t)>& work) const {
  std::exception_ptr first;
  for (std::size_t draw = 0; draw < draws(); ++draw) try {
      work(draw);
    } catch (const DeviceLost&) {
      throw;
    } catch (...) {
      if (!in_step_) throw;
      if (!first) first = std::current_exception();
    }
  if (first) std::rethrow_exception(first);
}

Verdict ProblemBench::verify_each(const std::function<Verdict(std::size_t)>& verify) const {
  Verdict all;
  for_each_draw([&](std::size_t draw) {
    if (!all.right && !in_step_) return;
    Verdict one = verify(draw);
    all.max_error = std::max(all.max_error, one.max_error);
    all.norm_error = std::max(all.norm_error, one.norm_error);
    if (!all.right || one.right) return;
    all.right = false;
    all.why = of_draw(draw, std::move(one.why));
  });
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
