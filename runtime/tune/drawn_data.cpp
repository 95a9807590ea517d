#include "runtime/tune/drawn_data.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/measure/problem_bench.hpp"
#include "runtime/support/machine.hpp"

namespace kiln::runtime {

namespace {

/// Data are drawn only if the largest so far would fit into 1 / kParts of the available memory,
/// because a bench with data of its own is at work meanwhile.
constexpr std::int64_t kParts = 4;

std::int64_t bytes_of(const std::vector<KernelData>& draws) {
  std::int64_t bytes = 0;
  for (const KernelData& data : draws)
    for (const Workload::Argument& argument : data.trial->arguments)
      bytes += static_cast<std::int64_t>(argument.bytes.size());
  return bytes;
}

bool is_ready(const DrawnData::Draws& draws) {
  return draws.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

bool DrawnData::is_for(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                       std::uint64_t seed) const {
  return draws_.valid() && kernel_ == &kernel && seed_ == seed &&
         std::ranges::equal(problem_, problem);
}

void DrawnData::begin(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                      std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  if (is_for(kernel, problem, seed) || (draws_.valid() && !is_ready(draws_))) return;
  draws_ = {};
  if (const auto available = available_memory(); available && *available / kParts < largest_)
    return;
  kernel_ = &kernel;
  problem_.assign(problem.begin(), problem.end());
  seed_ = seed;
  draws_ = std::async(std::launch::async, [this, &kernel, of = problem_, seed] {
    std::vector<KernelData> draws = make_draws(kernel, of, seed);
    const std::lock_guard added(mutex_);
    largest_ = std::max(largest_, bytes_of(draws));
    return draws;
  });
}

DrawnData::Draws DrawnData::take(const KernelDefinition& kernel,
                                 std::span<const std::int64_t> problem, std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  return is_for(kernel, problem, seed) ? std::move(draws_) : Draws();
}

void DrawnData::drop() {
  Draws dropped;  // waits without the lock
  const std::lock_guard lock(mutex_);
  dropped = std::move(draws_);
}

}  // namespace kiln::runtime
