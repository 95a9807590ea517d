#include "runtime/region/function.hpp"

#include <functional>

#include "kiln/detail/tunable.hpp"
#include "kiln/error.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/problems.hpp"

namespace kiln::detail {

namespace {

void start_function(const Launchable& ready, const Launch&, std::span<const std::int64_t>,
                    Stream stream, void** args) {
  using Call = std::function<void(std::span<const std::int64_t>, Stream)>;
  (*static_cast<const Call*>(args[0]))(ready.config, stream);
}

FunctionDescription in_a_region(FunctionDescription function) {
  function.in_a_region = true;
  return function;
}

class FunctionHandle final : public TunableHandle {
 public:
  explicit FunctionHandle(std::shared_ptr<FunctionCore> function)
      : function_(std::move(function)),
        description_(in_a_region(function_->description())),
        unprepared_(
            std::make_shared<const Launchable>(launchable({}, function_->default_knobs()))) {}

  Tunable what() const noexcept override { return description_; }
  const Engine& engine() const noexcept override { return *function_->engine(); }

  const Launchable* find(std::span<const std::int64_t> problem,
                         ReadSection& section) const noexcept override {
    return problems_.find(problem, section);
  }
  /// Also what the function was given outside of regions.
  Ready find(std::span<const std::int64_t> problem) const override {
    if (Ready in_use = problems_.find(problem)) return in_use;
    const Values* const knobs = function_->find(problem);
    return knobs ? std::make_shared<const Launchable>(launchable(problem, *knobs)) : nullptr;
  }
  std::variant<Launchable, Missing> load(std::span<const std::int64_t> problem,
                                         std::span<const std::int64_t> config) override {
    return launchable(problem, config);
  }
  Ready current(std::span<const std::int64_t> problem) override {
    if (Ready in_use = problems_.find(problem)) return in_use;
    if (function_->engine()->serving().sealed()) {
      function_->unprepared(problem);
      return unprepared_;
    }
    return std::get<Ready>(
        problems_.make(problem, [&] { return launchable(problem, best_known(problem)); }));
  }
  /// Knobs are read, not loaded, and a region in production measures nothing.
  Ready captured(std::span<const std::int64_t> problem, Stream) override {
    return current(problem);
  }
  void use(std::span<const std::int64_t> problem, const Values& config) override {
    problems_.choose(launchable(problem, config));
    function_->use(problem, config);
  }

 private:
  static Launchable launchable(std::span<const std::int64_t> problem,
                               std::span<const std::int64_t> config) {
    Launchable ready;
    ready.problem.assign(problem.begin(), problem.end());
    ready.config.assign(config.begin(), config.end());
    ready.start = start_function;
    return ready;
  }

  /// What a region found, else what was found alone.
  Values best_known(std::span<const std::int64_t> problem) const {
    if (const auto record = function_->engine()->records().recall(description_, problem))
      return record->result.winner().config;
    if (const Values* knobs = function_->find(problem)) return *knobs;
    const auto alone = function_->known(problem);
    return alone ? alone->winner().config : function_->default_knobs();
  }

  std::shared_ptr<FunctionCore> function_;
  const FunctionDescription description_;
  const Ready unprepared_;  ///< of a sealed runtime, for any problem
  runtime::Problems problems_;
};

}  // namespace

TunableHandle& FunctionHandles::of(const std::shared_ptr<FunctionCore>& function) {
  auto& handle = handles_[function.get()];
  if (!handle) handle = std::make_shared<FunctionHandle>(function);
  return *handle;
}

}  // namespace kiln::detail
