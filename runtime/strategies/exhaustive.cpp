#include "runtime/strategy.hpp"

namespace kiln::runtime {

namespace {

class Exhaustive final : public Strategy {
 public:
  explicit Exhaustive(const SearchProblem& search)
      : space_(search.space),
        default_(search.default_config),
        digits_(space_.parameters().size(), 0) {}

  std::vector<Values> propose(std::size_t count) override {
    std::vector<Values> proposals;
    while (!done_ && proposals.size() < count) {
      Values config;
      for (std::size_t i = 0; i < digits_.size(); ++i)
        config.push_back(space_.parameters()[i].values[digits_[i]]);
      if (config != default_) proposals.push_back(std::move(config));
      advance();
    }
    return proposals;
  }

  void observe(std::span<const std::int64_t>, double) override {}

 private:
  /// The last field turns fastest.
  void advance() {
    for (std::size_t i = digits_.size(); i-- > 0;) {
      if (++digits_[i] < space_.parameters()[i].values.size()) return;
      digits_[i] = 0;
    }
    done_ = true;
  }

  const DynamicSpace& space_;
  const Values default_;
  std::vector<std::size_t> digits_;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_exhaustive(const SearchProblem& search) {
  return std::make_unique<Exhaustive>(search);
}

}  // namespace kiln::runtime
