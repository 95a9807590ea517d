// A search of given configs, in their order.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/search/strategy.hpp"

namespace kiln::runtime {

/// The list must outlive it.
class Given final : public Strategy {
 public:
  explicit Given(std::span<const Values> configs) : left_(configs) {}

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
