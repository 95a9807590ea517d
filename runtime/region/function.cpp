#include "runtime/region/function.hpp"

#include <functional>

#include "kiln/definition.hpp"
#include "kiln/error.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/problems.hpp"

namespace kiln::detail {

namespace {

void start_function(const ReadyKernel& ready, const LaunchGeometry&, Stream stream, void** args) {
  using Call = std::function<void(std::span<const std::int64_t>, Stream)>;
  (*static_cast<const Call*>(args[0]))(ready.config, stream);
}

/// A record of its own: what is best in a region need not be best alone.
KernelDefinition in_a_region(KernelDefinition definition) {
  definition.source.options.push_back("in a region");
  return definition;
}

class FunctionHandle final : public HandleCore {
 public:
  explicit FunctionHandle(std::shared_ptr<FunctionCore> function)
      : function_(std::move(function)), definition_(in_a_region(function_->definition())) {}

  const ReadyKernel* find(std::span<const std::int64_t> problem) const noexcept override {
    return problems_.find(problem);
  }
  std::variant<ReadyKernel, Missing> ready(std::span<const std::int64_t> problem,
                                           std::span<const std::int64_t> config) override {
    return version(problem, config);
  }
  const ReadyKernel& current(std::span<const std::int64_t> problem) override {
    if (const ReadyKernel* known = find(problem)) return *known;
    return *std::get<const ReadyKernel*>(
        problems_.make(problem, [&] { return version(problem, best_known(problem)); }));
  }
  std::shared_ptr<HandleCore> with_config(std::span<const std::int64_t>) const override {
    refuse();
  }
  void use(std::span<const std::int64_t> problem, const Values& config) override {
    problems_.choose(version(problem, config));
    function_->use(problem, config);
  }
  const KernelDefinition& definition() const noexcept override { return definition_; }
  const Engine& engine() const noexcept override { return *function_->engine(); }

  const ReadyKernel& make_ready(std::span<const std::int64_t> problem) override {
    return current(problem);
  }
  std::optional<Missing> prepare(std::span<const std::int64_t>) override { return {}; }
  TuneResult tune(std::span<const std::int64_t>, const TuneOptions*) override { refuse(); }
  std::optional<TuneResult> known(std::span<const std::int64_t>) override { refuse(); }
  Verification verify(std::span<const std::int64_t>, std::uint64_t) override { refuse(); }
  Symbol symbol(const ReadyKernel&, std::string_view) const override { refuse(); }
  void set_symbol(std::string, std::span<const std::byte>) override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    throw InternalError("a function's handle in a region does nothing but launch");
  }
  static ReadyKernel version(std::span<const std::int64_t> problem,
                             std::span<const std::int64_t> config) {
    ReadyKernel ready;
    ready.problem.assign(problem.begin(), problem.end());
    ready.config.assign(config.begin(), config.end());
    ready.start = start_function;
    return ready;
  }

  /// What a region found, else what was found alone.
  Values best_known(std::span<const std::int64_t> problem) const {
    if (const auto record = function_->engine()->records().recall(definition_, problem))
      return record->result.winner().config;
    if (const Values* knobs = function_->find(problem)) return *knobs;
    const auto alone = function_->known(problem);
    return alone ? alone->winner().config : function_->default_knobs();
  }

  std::shared_ptr<FunctionCore> function_;
  const KernelDefinition definition_;
  runtime::Problems problems_;
};

}  // namespace

const std::shared_ptr<HandleCore>& FunctionHandles::of(
    const std::shared_ptr<FunctionCore>& function) {
  auto& handle = handles_[function.get()];
  if (!handle) handle = std::make_shared<FunctionHandle>(function);
  return handle;
}

}  // namespace kiln::detail
