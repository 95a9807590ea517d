// Tunes the buckets of a choice: what is tuned by itself first, then all candidates in one search.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kiln/communicator.hpp"
#include "kiln/detail/choice_core.hpp"
#include "kiln/tune.hpp"
#include "runtime/choice/choice_maker.hpp"
#include "runtime/choice/field.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/tune/tuner.hpp"
#include "runtime/tune/tuning_turn.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {

/// Each part of a choice's tuning has at least this long, however little time is left.
constexpr double kLeastChoiceSeconds = 0.1;

/// Thread-safe. What it is given must outlive it. own_tunings.cpp has the tunings of kernels by
/// themselves, choice_tuner.cpp the rest.
class ChoiceTuner {
 public:
  using Span = std::span<const std::int64_t>;
  using Decided = std::shared_ptr<const Decision>;

  /// The contenders may still be added when this is made.
  /// @param switches where one is forced, its first candidate is launched, however fast it is
  /// @param asked_by_launches the ranks that decide for launches; null: none
  ChoiceTuner(detail::Engine& engine, const detail::ChoiceDescription& choice,
              const std::vector<std::unique_ptr<Contender>>& contenders, const Switches& switches,
              std::shared_ptr<Communicator> asked_by_launches);

  Workshop& workshop() noexcept { return workshop_; }

  /// With the field of an exact problem or a bucket, and its first candidate.
  /// @throws NoAlternative; what an alternative's functions throw
  Decision first_of(Span problem) const;
  /// The same of an exact problem whose bucket was decided, without what ranks have left out.
  Decision first_of(Span problem, const Decision& of_bucket) const;

  /// What was decided for a bucket last; null: nothing, or it was forgotten and is on record. The
  /// bound is RuntimeOptions::max_problems; what ranks have decided is never forgotten.
  Decided decided(const ProblemValues& bucket) const;
  Decided decide(const ProblemValues& bucket, Decision decision) {
    return decide(bucket, std::make_shared<const Decision>(std::move(decision)));
  }
  Decided decide(const ProblemValues& bucket, Decided decision);
  /// What agree() threw, if launches would only ask the other ranks in vain: they have gone on, or
  /// come to the same again. Until something is decided.
  void throw_if_undecidable(const ProblemValues& bucket) const;

  /// Whether the only candidate is a kernel.
  bool is_only_kernel(const Field& field) const;
  /// Whether kernels are tuned by themselves first.
  enum class Kernels { tuned, as_in_use };
  /// The first candidate alone; nothing is recorded. Tunes nothing by itself where ranks have
  /// decided.
  TuneResult time_first(const Decision& first, const ProblemValues& bucket,
                        const TuneOptions& options, Kernels kernels = Kernels::tuned);
  /// Tunes an only candidate that is a kernel, and says whether it is one: it has been verified by
  /// its own tuning then, and an empty problem has nothing to time.
  bool tuned_by_itself(const Field& field, const ProblemValues& bucket, const TuneOptions* alone);
  /// First what is tuned by itself, unless kernels take part as they are in use, then all
  /// candidates in one search, with one final. Where the gate acts, `field` is the gated one from
  /// then on.
  /// @param alone options of the former; null: as launches do
  TuneOutcome measure(Field& field, const ProblemValues& bucket, TuneOptions options,
                      const TuneOptions* alone, bool for_launch, Kernels kernels = Kernels::tuned);
  /// Whether launches of a decision need not tune its kernel.
  bool can_launch_at_once(const Decision& decision, const ProblemValues& bucket) const;
  /// Whether a record answers as far as kernels have something in use: those that have nothing were
  /// not tuned to the end, and cannot be timed now.
  bool is_all_tried(const Recall& recall, const Field& field, const ProblemValues& bucket,
                    const TuneOptions& options) const;
  /// What is on record for any policy. Where that is of the gate, `field` is the gated one from
  /// then on.
  std::optional<Recall> recall(Field& field, const ProblemValues& bucket);

  /// The kernels among the alternatives that take part, with their buckets.
  std::vector<detail::ChoiceCore::KernelProblem> kernels(const ProblemValues& bucket) const;

  /// Contenders of which one of these was wrong, or worse, are not trusted with other problems.
  void note_failed(const Field& field, const FailedConfigs& configs) noexcept {
    for (const auto& [config, status] : configs)
      if (status != CandidateStatus::launch_failed) failed_[field.place(config).contender] = true;
  }
  /// Whether that was so of a contender in any bucket. Takes no lock.
  bool has_failed(std::size_t contender) const noexcept { return failed_[contender]; }

  struct Agreed {
    Decision decision;
    std::optional<TuneOutcome> tuned{};  ///< nothing: there was nothing to time
  };
  /// The same by all ranks, on the alternatives that all of them have: a number of collectives that
  /// is the same on all of them.
  /// @pre the ranks' turn is the caller's, outside of any measurement of ranks
  /// @throws as meet(); NoAlternative and NoneUsable on all ranks
  /// alike; what this rank has failed with alone
  Agreed agree(const ProblemValues& bucket, const TuneOptions& options, bool for_launch);

 private:
  struct Parts {
    std::vector<CannotRun> failed;  ///< by contender
    KernelConfigs kernels;          ///< by contender
    bool complete = true, changed = false;
    bool empty = false;  ///< a kernel launches nothing
  };
  Parts no_parts() const {
    return {std::vector<CannotRun>(contenders_.size()), KernelConfigs(contenders_.size())};
  }
  std::size_t count_kernels(const Field& field) const;
  void tell_of_first_answers(const Field& field) const;
  /// @param options with a time limit for all kernels together
  /// @param retuned the contender that has just been tuned
  Parts tune_alone_each(const Field& field, const ProblemValues& bucket, const TuneOptions* options,
                        bool for_launch, std::optional<std::size_t> retuned = {});
  Parts parts_in_use(const Field& field, const ProblemValues& bucket) const;
  /// How a kernel's own tuning has failed for good.
  std::optional<TuningFailedError> none_usable(ServedHandle& kernel,
                                               const ProblemValues& bucket) const;
  /// Fails the kernels that ranks would launch with different configs: defaults may depend on the
  /// device. Finds whether `empty` holds on all ranks. A collective where there is a kernel.
  void compare_kernels(const Field& field, Parts& parts, const TuneOptions& options);
  /// Whether there is a gate that may leave out others than the first candidate.
  bool has_gate(const Field& field) const;
  /// Whether the first candidate is fast enough for the gate.
  bool acts(const TuneResult& of_first) const;
  /// The field with the first candidate alone. @pre has_gate()
  Field gated(const Field& field, Span bucket) const;
  /// The outcome for the first candidate alone, if the gate acts. Then `field` is the gated one.
  /// @pre has_gate()
  std::optional<TuneOutcome> stop_at_gate(Field& field, const ProblemValues& bucket,
                                          TuneOptions options, const TuneOptions* alone,
                                          bool for_launch, Kernels kernels);
  std::unique_ptr<ChoiceMaker> maker(const Field& field, const ProblemValues& bucket,
                                     const TuneOptions& options, const Parts& parts);
  WatchedBench::Alone alone(const TuneOptions& options);
  Agreed tune_in_common(Field common, const ProblemValues& bucket, TuneOptions options,
                        bool for_launch);
  void note_undecidable(const ProblemValues& bucket, const TuneOptions& options,
                        std::exception_ptr why);
  FailedConfigs failed_on_any(const Field& field, const Parts& parts, const TuneResult& result,
                              const TuneOptions& options);
  Field field_of(Span problem, std::vector<Entrance> entrances) const;

  detail::Engine& engine_;
  const detail::ChoiceDescription& choice_;
  const std::vector<std::unique_ptr<Contender>>& contenders_;
  const Switches& switches_;
  const bool deterministic_;
  const std::shared_ptr<Communicator> asked_by_launches_;
  std::vector<std::atomic<bool>> failed_;  ///< by contender
  /// The runtime's, but for the turn: a candidate may be a kernel that is tuned when it is tried.
  Workshop workshop_;
  TuningTurn tuning_;  ///< with ranks, one problem at a time; without, the runtime's turn is enough
  mutable std::mutex mutex_;
  struct Outcome {
    Decided decision{};
    std::exception_ptr why_not{};  ///< then: why there is none
  };
  std::map<Values, Outcome> outcomes_;  ///< by bucket
};

FailedConfigs failed_configs(const TuneResult& result);

}  // namespace kiln::runtime
