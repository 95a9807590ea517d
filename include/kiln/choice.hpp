// One operation, several ways to do it: a kernel with its whole space, cuBLASLt, any callable. They
// are measured for each problem, and the fastest runs.
// `kiln::choice(kernel)` makes one of a kernel, with its workload and reference; further
// alternatives are pushed back, and `kiln::tuned(runtime, choice)` gives what is launched.
//
// The first alternative that takes part gives the default: its first candidate is replaced only by
// one that is certainly faster. docs/choices.md says how a choice is tuned, and what is on record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kiln/alternative.hpp"
#include "kiln/detail/choice_core.hpp"
#include "kiln/dynamic_choice.hpp"
#include "kiln/kernel.hpp"
#include "kiln/runtime.hpp"

namespace kiln {

template <Reflected Problem, class Signature>
struct Choice;

/// An aggregate. Members after `alternatives` that are left empty are taken from the first kernel
/// among the alternatives.
template <Reflected Problem, class... Args>
struct Choice<Problem, void(Args...)> {
  std::string name{};  ///< letters, digits, '_'; names records and variables
  /// As Kernel::problem.
  Problem (*problem)(Args...) = nullptr;
  std::vector<Alternative<Problem, void(Args...)>> alternatives{};
  Problem (*bucket)(const Problem&) = nullptr;                ///< as Kernel::bucket
  std::function<void(const Problem&, Workload&)> workload{};  ///< as Kernel::workload
  std::function<void(Args...)> reference{};                   ///< as Kernel::reference
  std::optional<Tolerance> tolerance{};                       ///< as Kernel::tolerance
  std::string data_version{};                                 ///< as Kernel::data_version
  /// Tells choices of one name apart in records and reports. Empty: the types of the first kernel.
  std::vector<std::string> types{};
  std::function<double(const Problem&)> flops{};  ///< as Kernel::flops
  std::function<double(const Problem&)> bytes{};  ///< as Kernel::bytes

  /// @throws UserError naming the field that is missing or wrong.
  detail::ChoiceDescription description() const;
};

/// A choice with a kernel as its first alternative, `template`. By default `name` is the kernel's.
template <class Config, class Problem, class... Args>
Choice<Problem, void(Args...)> choice(const Kernel<Config, Problem, void(Args...)>& kernel,
                                      std::string name = {}) {
  return {.name = name.empty() ? kernel.name : std::move(name),
          .problem = kernel.problem,
          .alternatives = {alternative(kernel)}};
}

/// Below a time nobody would miss, the first alternative is taken without a look at the others:
/// where its first candidate takes less than `seconds`, or less than `share` of a step of
/// `step_seconds`. 0: no such limit.
struct ChoiceGate {
  double seconds = 0;
  double share = 0;  ///< 0.01 is 1 %
  double step_seconds = 0;
};

/// Which alternatives may take part. What is left open is taken from the environment when the tuned
/// choice is made: `KILN_BACKENDS_<NAME>`, else `KILN_BACKENDS`; `KILN_CHOOSE_<NAME>`.
struct ChoiceOptions {
  /// Names: only these. With a minus in front: all but these.
  std::vector<std::string> backends{};
  /// One alternative that launches use, whatever is faster, with its first candidate. What is
  /// measured meanwhile is not recorded.
  std::string choose{};
  std::string numerics{};               ///< only alternatives of this class; empty: any
  std::optional<TuneOptions> tuning{};  ///< instead of RuntimeOptions::tuning
  /// The first alternative is timed before the others, and if it takes less, none of these is
  /// compiled or timed. A warning of the result and the log say so. Records with and without the
  /// gate are apart. Not heeded where ranks tune together.
  ChoiceGate gate{};
};

/// An alternative and one problem.
struct AlternativeInfo {
  std::string name, version, numerics;
  bool capturable = true;
  std::string why_not;  ///< why it takes no part; empty: it does
  /// On record for its best candidate: Candidate::host_seconds. 0: not known.
  double host_seconds = 0;
};

/// What launches of a problem use.
struct ChosenAlternative {
  std::string name;
  std::string text;     ///< with its knobs or its algorithm
  bool forced = false;  ///< by ChoiceOptions::choose or its variable
};

template <Reflected Problem, class Signature>
class TunedChoice;

/// Copies share everything. May be used by several threads at once. A launch of a known problem
/// takes no lock and allocates nothing, except for what an alternative does itself. A launch of a
/// new problem tunes it in the mode tune_now; in the others it uses what is on record, else the
/// default. On a stream that is being captured a new problem is a CaptureError. Graphs use
/// workspaces of the choice: its last copy must outlive them. Where the tuning has ranks, `tune`,
/// `prepare` and the first launch of a bucket are collective, and all ranks launch the same
/// candidate of the alternatives that all of them have (docs/choices.md).
template <Reflected Problem, class... Args>
class TunedChoice<Problem, void(Args...)> {
 public:
  /// @throws UserError: no alternative can do the problem; or ranks have none in common, list them
  /// in different orders, ask for different things or, in mode background, have decided nothing.
  /// @throws TuningFailedError, EnvironmentError: a new problem cannot be made ready.
  /// @throws UnpreparedError: on a sealed runtime exactly this problem was not prepared, or could
  /// not be made ready as ranks decided, and no kernel of the choice stands in for it: none is
  /// loaded that can, ranks decide, or OnUnprepared does not allow it. And what alternatives throw.
  void operator()(Stream stream, Args... args) const {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))...};
    core_->launch(to_values(problem_(args...)), stream, pointers);
  }

  /// Makes a problem ready without launching it, on a sealed runtime, too.
  void prepare(const Problem& problem) const { core_->prepare(to_values(problem)); }
  /// Tunes now (or reads the store) and says what was found; later launches use it. The parameter
  /// `alternative` names the winner. A forced choice is measured alone.
  /// @throws as a launch; UserError inside of a measurement of ranks; EnvironmentError naming the
  /// rank that gave up, or did not come, before ranks had compared their alternatives. Launches
  /// then use what was decided before.
  TuneResult tune(const Problem& problem) const { return core_->tune(to_values(problem), nullptr); }
  TuneResult tune(const Problem& problem, const TuneOptions& options) const {
    return core_->tune(to_values(problem), &options);
  }
  /// What the store remembers of a problem; nothing is measured. Before ranks have met, that is
  /// what this rank's own alternatives came to; afterwards, what they had in common then, also
  /// where a kernel's source was edited since.
  std::optional<TuneResult> known(const Problem& problem) const {
    return core_->known(to_values(problem));
  }
  /// What launches of a problem use. If it is not ready, this is as a first launch of it:
  /// collective, too, where nothing was decided on its bucket.
  ChosenAlternative chosen(const Problem& problem) const {
    return core_->chosen(to_values(problem));
  }
  /// All alternatives, with the reasons of those that take no part.
  std::vector<AlternativeInfo> alternatives(const Problem& problem) const {
    return core_->alternatives(to_values(problem));
  }

  /// For jobs of Runtime::tune, with problems as `to_values` makes them.
  operator DynamicChoice() const { return detail::ChoiceMade::of(core_); }

 private:
  template <Reflected P, class... A>
  friend TunedChoice<P, void(A...)> tuned(const Runtime& runtime,
                                          const Choice<P, void(A...)>& choice,
                                          ChoiceOptions options);

  TunedChoice(std::shared_ptr<detail::ChoiceCore> core, Problem (*problem)(Args...))
      : core_(std::move(core)), problem_(problem) {}

  std::shared_ptr<detail::ChoiceCore> core_;
  Problem (*problem_)(Args...);
};

/// Makes the handle of a choice. Nothing is measured before its first launch.
/// On a deterministic runtime only alternatives of one numerics class take part: that of the first
/// one, which is alone if it has none.
/// @throws UserError as Choice::description does; for switches that name no alternative or leave
/// none; for a gate that is negative or not finite.
template <Reflected Problem, class... Args>
TunedChoice<Problem, void(Args...)> tuned(const Runtime& runtime,
                                          const Choice<Problem, void(Args...)>& choice,
                                          ChoiceOptions options = {}) {
  return {detail::make_choice_core(runtime, choice.description(), std::move(options)),
          choice.problem};
}

/// The same of a choice that is known by its description alone, as a Registry has it.
inline DynamicChoice tuned(const Runtime& runtime, detail::ChoiceDescription choice,
                           ChoiceOptions options = {}) {
  choice.validate();
  return detail::ChoiceMade::of(
      detail::make_choice_core(runtime, std::move(choice), std::move(options)));
}

template <Reflected Problem, class... Args>
detail::ChoiceDescription Choice<Problem, void(Args...)>::description() const {
  using Span = std::span<const std::int64_t>;
  if (!problem) throw UserError("choice " + name + ": `problem` is missing");
  detail::ChoiceDescription d;
  d.name = name;
  KernelDefinition& operation = d.operation;
  operation.name = name;
  operation.arguments = {device_name<Args>()...};
  for (const FieldInfo& field : field_infos<Problem>())
    operation.problem_fields.emplace_back(field.name);
  for (const auto& from : alternatives) {
    const bool first_kernel = from.kernel && operation.entry.empty();
    if (first_kernel) operation = *from.kernel;
    d.alternatives.push_back(detail::describe(from));
  }
  if (bucket)
    operation.bucket = [f = bucket](Span p) { return to_values(f(from_values<Problem>(p))); };
  if (workload)
    operation.workload = [f = workload](Span p, Workload& w) { f(from_values<Problem>(p), w); };
  if (reference)
    operation.reference = [f = reference](Span, std::span<void* const> args) {
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        f(detail::host_argument<Args>(args[I])...);
      }(std::index_sequence_for<Args...>{});
    };
  if (workload || reference) operation.device_reference.reset();
  if (flops) operation.flops = [f = flops](Span p) { return f(from_values<Problem>(p)); };
  if (bytes) operation.bytes = [f = bytes](Span p) { return f(from_values<Problem>(p)); };
  if (tolerance) operation.tolerance = *tolerance;
  if (!data_version.empty()) operation.data_version = data_version;
  d.types = types.empty() ? operation.types : types;
  d.validate();
  return d;
}

}  // namespace kiln
