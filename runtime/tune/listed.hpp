// A search of a given list of configs, in its order.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/search/strategy.hpp"

namespace kiln::runtime {

/// The list must outlive it.
class Listed final : public Strategy {
 public:
  explicit Listed(std::span<const Values> configs) : left_(configs) {}

  std::vector<Values> propose(std::size_t count) override {
    const auto next = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(next.size());
    return {next.begin(), next.end()};
  }
  void observe(std::span<const std::int64_t>, double) override {}

 private:
  std::span<const Values> left_;
};

}  // namespace kiln::runtime
