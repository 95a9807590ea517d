// A tuned choice: what its launches use, and how that is decided.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kiln/choice.hpp"
#include "kiln/detail/handle_core.hpp"
#include "runtime/choice/choice_tuner.hpp"
#include "runtime/choice/switches.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/problems.hpp"
#include "runtime/serve/reserve.hpp"
#include "runtime/serve/served_choice.hpp"

namespace kiln::detail {

using runtime::ChoiceCall;
using runtime::ChoiceTuner;
using runtime::Contender;
using runtime::Decision;

/// Thread-safe. choice.cpp has what programs ask for, deciding.cpp how a decision comes about,
/// launching.cpp what launches do with one, and preparing.cpp manifests and sealed runtimes.
class TunedChoiceCore final : public runtime::ServedChoice {
 public:
  TunedChoiceCore(const Runtime& runtime, ChoiceDescription choice, ChoiceOptions options);
  ~TunedChoiceCore() override;

  void launch(Span problem, Stream stream, void** args) override;
  void prepare(Span problem) override;
  TuneResult tune(Span problem, const TuneOptions* given) override;
  std::optional<TuneResult> known(Span problem) override;
  ChosenAlternative chosen(Span problem) override;
  std::vector<AlternativeInfo> alternatives(Span problem) override;

  const ChoiceDescription& description() const noexcept override { return choice_; }
  const Engine& engine() const noexcept override { return *engine_; }
  std::vector<KernelProblem> kernels(Span problem) override {
    return tuner_.kernels(choice_.operation.bucketed(problem));
  }
  TuneResult meet(Span problem, const TuneOptions& options) override;

  TuneOptions tuning() const override { return tuning_options(nullptr); }
  Answer answer(Span problem) override;
  bool has_gate() const override { return switches_.gate_seconds > 0 && !switches_.forced; }
  std::vector<KernelOf> kernels_of(Span problem) override;
  runtime::PreparedChoice make_ready(Span problem, const HowReady& how) override;
  void reserve_workspace(Stream stream, Span problem) override;
  void seal() override;
  std::map<Values, std::uint64_t> launched_unprepared() const override;

 private:
  using Decided = ChoiceTuner::Decided;
  using Problems = runtime::Problems;

  /// Null also where what was decided could not be made ready.
  const Launchable* find(Span problem, ReadSection& section) const noexcept {
    const Launchable* const known = problems_.find(problem, section);
    return known && known->loaded ? known : nullptr;
  }
  Ready in_use(Span problem) const noexcept {
    Ready known = problems_.find(problem);
    return known && known->loaded ? known : nullptr;
  }
  static void call(const Launchable& known, Span problem, Stream stream, void** args) {
    known.start(known, {}, problem, stream, args);
  }
  runtime::ProblemBound bound();
  TuneOptions tuning_options(const TuneOptions* given) const {
    return engine_->completed(given             ? *given
                              : options_.tuning ? *options_.tuning
                                                : engine_->options().tuning);
  }
  bool in_background() const { return engine_->options().mode == Mode::background; }

  // --- deciding ---------------------------------------------------------------------------------

  /// What launches of a new problem use from now on.
  Ready obtain(Span problem, Stream stream, bool by_launch);
  /// The thread whose turn it is to tune does not wait for another thread that makes the problem,
  /// because that one may wait for the turn.
  Problems::Outcome make_here_or_wait(Span problem, const Problems::Work& make, Problems::If when);
  /// The same without waiting for another thread that makes it.
  Ready obtain_decided(Span problem);
  /// What launches use until one of them finds an answer: waiting for another process has left this
  /// one no time to tune.
  Ready best_known(Span problem);
  /// What was decided for a bucket, is on record, or is found now. Null: the time for that was
  /// spent waiting.
  Decided settle(const ProblemValues& bucket, const TuneOptions& options, bool by_launch);
  /// What this rank remembers is no choice yet: the others may remember something else. A decision
  /// holds: the other ranks do not ask about the bucket again.
  Decided settle_together(const ProblemValues& bucket, const TuneOptions& options, bool by_launch);
  TuneResult tune_together(Span problem, const ProblemValues& bucket, const TuneOptions& options);
  TuneResult time_forced(const Decision& decision, const ProblemValues& bucket,
                         const TuneOptions& options,
                         ChoiceTuner::Kernels kernels = ChoiceTuner::Kernels::tuned);

  // --- launching --------------------------------------------------------------------------------

  /// Launches of a problem, and of all known ones of its bucket, use this from now on. One that
  /// cannot be made ready stays as it was, unless ranks have decided, since others may launch it as
  /// decided: then its next launch tries again. @throws what the first of these threw
  /// @param at_once as ready()
  void use(Span problem, const ProblemValues& bucket, Decision decision, bool at_once = false);
  /// Keeps what is in use for a pinned problem loaded. It is called after a problem is pinned and
  /// after a launchable is published, so that of two threads at least one sees both.
  void stay(Span problem) const;
  /// What launches of an exact problem do. If the decided config has failed, or cannot do this
  /// problem, the first candidate that can is used. Ranks switch for no other reason. Without
  /// ranks, what is lacking just now is a reason, too, until the problem is prepared again.
  /// @param at_once a kernel that has nothing in use is no candidate
  Launchable ready(Span problem, const Decision& decision, bool at_once = false);
  Launchable launchable(Span problem, const Decision& decision, bool provisional = false);

  // --- manifests and sealed runtimes ------------------------------------------------------------

  runtime::PreparedChoice make_ready_alone(Span problem, const ProblemValues& bucket,
                                           const TuneOptions& options, bool measure);
  runtime::PreparedChoice make_ready_together(Span problem, const ProblemValues& bucket,
                                              const TuneOptions& options, const HowReady& how);
  const std::string& name_of(const Decision& decision) const {
    return contenders_[decision.field.place(decision.config).contender]->what().name;
  }
  std::map<std::string, std::int64_t> named_config(const Launchable& used) const;
  /// Launches what a kernel of the choice has loaded. @throws UnpreparedError
  void launch_unprepared(Span problem, OnUnprepared what, Stream stream, void** args);

  const std::shared_ptr<Engine> engine_;  ///< the runtime's
  const ChoiceDescription choice_;
  const ChoiceOptions options_;
  const bool together_;  ///< ranks decide
  const runtime::Switches switches_;
  runtime::Workspaces workspaces_;
  std::vector<std::unique_ptr<Contender>> contenders_;  ///< those that are switched on
  runtime::ChoiceTuner tuner_;
  const runtime::UnpreparedLaunches unprepared_;
  runtime::NotedLaunches notes_;
  Problems problems_;  ///< exact ones; last, since what it holds uses what is above
};

}  // namespace kiln::detail
