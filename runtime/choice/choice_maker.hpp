// Trials of a choice's candidates: calls on data of the operation.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/choice/field.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/watched_bench.hpp"
#include "runtime/serve/bounds.hpp"
#include "runtime/tune/kernel_maker.hpp"
#include "runtime/tune/trial_maker.hpp"

namespace kiln::runtime {

/// Nothing has to be built or loaded; what makes a candidate ready is done when it is loaded.
class ChoiceMaker final : public TrialMaker {
 public:
  /// @param failed,kernels by contender; kernels as Contender::ready
  /// @param may_improve whether a kernel's own tuning is not complete
  /// @param same_bits whether candidates of one numerics class must keep what that promises
  /// @param seconds,tell,alone as WatchedBench
  /// @param bounds by which nothing leaves while the maker lives
  ChoiceMaker(const Field& field, std::span<const std::unique_ptr<Contender>> contenders,
              std::vector<CannotRun> failed, KernelConfigs kernels, bool may_improve,
              bool same_bits, KernelMaker data, double seconds, WatchedBench::Tell tell,
              WatchedBench::Alone alone, Bounds& bounds)
      : hold_(bounds),
        field_(field),
        contenders_(contenders),
        failed_(std::move(failed)),
        kernels_(std::move(kernels)),
        may_improve_(may_improve),
        same_bits_(same_bits),
        data_(std::move(data)),
        seconds_(seconds),
        tell_(std::move(tell)),
        alone_(std::move(alone)) {
    data_.use_calls([this](const Values& config) -> ImplementationCall {
      return [call = ready(config)](Stream stream, void** args) { (*call)(stream, args); };
    });
  }
  ChoiceMaker(const ChoiceMaker&) = delete;
  ChoiceMaker& operator=(const ChoiceMaker&) = delete;

  detail::Tunable subject() const noexcept override { return field_.subject; }
  std::span<const std::int64_t> problem() const noexcept override { return data_.problem(); }
  const DeviceInfo& device() const noexcept override { return data_.device(); }
  bool has_reference() const noexcept override { return data_.has_reference(); }
  bool may_improve() const noexcept override { return may_improve_; }
  unsigned threads() const noexcept override { return 1; }
  Build build(const Values&) override { return {}; }
  std::variant<std::shared_ptr<Module>, Refusal> load(const Values&, const Build&) override {
    return {};
  }
  TrialBench& bench() override {
    if (!watched_) {
      watched_ = std::make_unique<WatchedBench>(data_.bench(), seconds_, tell_, alone_);
      watched_->when_overdue(also_tell_);
    }
    return *watched_;
  }
  void expect() override { data_.expect(); }
  std::vector<std::string> take_warnings() override { return data_.take_warnings(); }
  void when_overdue(WatchedBench::Tell tell) override {
    also_tell_ = std::move(tell);
    if (watched_) watched_->when_overdue(also_tell_);
  }
  void drop_bench() noexcept override {
    watched_.reset();
    last_.reset();
    data_.drop_bench();
  }
  Trial trial(const Values& config, const Build&) override {
    ready(config);
    const detail::AlternativeDescription& what =
        contenders_[field_.place(config).contender]->what();
    return data_.trial(Implementation{.name = what.name,
                                      .recordable = all_capturable(),
                                      .numerics = same_bits_ ? what.numerics : std::string()},
                       config, field_.subject.space.describe(config));
  }
  std::shared_ptr<Module> module_of(const Rig&) override { return nullptr; }

 private:
  /// Either all or none are replayed, because a replay does not contain the host's work for a
  /// launch.
  bool all_capturable() const {
    for (std::size_t i = 0; i < contenders_.size(); ++i)
      if (!field_.entrances[i].candidates.empty() && !contenders_[i]->what().capturable)
        return false;
    return true;
  }

  /// The call of a candidate; the last one is kept until another is asked for.
  /// @throws OutOfMemory for whatever may pass: a search does not remember that
  std::shared_ptr<const ChoiceCall> ready(const Values& config) {
    if (!last_ || last_config_ != config) {
      last_.reset();
      const auto [contender, candidate] = field_.place(config);
      last_ = make_ready(contender, candidate);
      last_config_ = config;
    }
    return last_;
  }
  std::shared_ptr<const ChoiceCall> make_ready(std::size_t contender,
                                               const Values& candidate) const {
    if (const CannotRun& failed = failed_[contender]; failed.passing)
      throw OutOfMemory(failed.why);
    else if (failed.wrong)
      throw TrialFault(CandidateStatus::wrong_result, failed.why);
    else if (!failed.why.empty())
      throw EnvironmentError(failed.why);
    try {
      return contenders_[contender]->ready(problem(), candidate, kernels_[contender]);
    } catch (const DeviceLost&) {
      throw;
    } catch (const EnvironmentError& error) {
      throw OutOfMemory(error.what());
    }
  }

  const Bounds::Hold hold_;  ///< candidates are kernels of handles, which evict each other
  const Field& field_;
  const std::span<const std::unique_ptr<Contender>> contenders_;
  const std::vector<CannotRun> failed_;
  const KernelConfigs kernels_;
  const bool may_improve_, same_bits_;
  KernelMaker data_;
  const double seconds_;
  const WatchedBench::Tell tell_;
  const WatchedBench::Alone alone_;
  WatchedBench::Tell also_tell_;
  std::unique_ptr<WatchedBench> watched_;  ///< over the bench of `data_`
  Values last_config_;
  std::shared_ptr<const ChoiceCall> last_;  ///< of `last_config_`
};

}  // namespace kiln::runtime
