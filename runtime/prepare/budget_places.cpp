#include "runtime/prepare/budget_places.hpp"

#include <exception>

#include "runtime/serve/engine.hpp"
#include "runtime/tune/record.hpp"

namespace kiln::runtime {

BudgetPlaces::Place BudgetPlaces::of(const WeightedProblem& problem) {
  const ServedHandle* first = first_of(*problem.handle);
  if (const auto found = places_.find({first, problem.problem}); found != places_.end()) {
    if (is_one(*tuned_[found->second], *problem.handle, problem.problem))
      return {found->second, first};
    first = problem.handle;
  }
  const auto [place, is_new] = places_.try_emplace({first, problem.problem}, tuned_.size());
  if (is_new) tuned_.push_back(problem.handle);
  return {place->second, first};
}

/// A config that the program has fixed is no other handle's business.
const ServedHandle* BudgetPlaces::first_of(const ServedHandle& handle) {
  const auto [first, is_new] = firsts_.try_emplace(&handle, &handle);
  if (is_new && !handle.fixed()) try {
      const Digest kernel = engine_.records().definition(handle.definition());
      first->second = by_kernel_.try_emplace(kernel, &handle).first->second;
    } catch (const std::exception&) {  // tuning it reports a source that cannot be read
    }
  return first->second;
}

/// Whether both search among the same configs.
bool BudgetPlaces::is_one(const ServedHandle& a, const ServedHandle& b,
                          const Values& problem) const {
  if (&a == &b) return true;
  try {
    return same_space(a.definition(), b.definition(), problem, engine_.device()->info());
  } catch (...) {  // tuning the problem reports it
    return false;
  }
}

}  // namespace kiln::runtime
