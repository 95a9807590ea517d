// Which of the problems that a budget is asked for are the same one, through whatever handle.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "runtime/prepare/tune_budget.hpp"

namespace kiln::runtime {

/// Handles of one kernel share their records, so a problem that several of them are asked for is
/// tuned once. The engine must outlive it.
class BudgetPlaces {
 public:
  struct Place {
    std::size_t index;          ///< in the order in which distinct problems were asked for
    const ServedHandle* first;  ///< of the kernel's handles that were asked for
  };

  explicit BudgetPlaces(detail::Engine& engine) : engine_(engine) {}

  Place of(const WeightedProblem& problem);

 private:
  const ServedHandle* first_of(const ServedHandle& handle);
  bool is_one(const ServedHandle& a, const ServedHandle& b, const Values& problem) const;

  detail::Engine& engine_;
  std::map<const ServedHandle*, const ServedHandle*> firsts_;
  std::map<Digest, const ServedHandle*> by_kernel_;
  std::map<std::pair<const ServedHandle*, Values>, std::size_t> places_;
  std::vector<const ServedHandle*> tuned_;  ///< the handle that was asked first, by place
};

}  // namespace kiln::runtime
