// Any callable with knobs, tuned as kernels are: how many blocks a collective gets, which of two
// libraries does the work, whether a step is fused.
//
//   const kiln::Function<ReduceKnobs, Bytes, void(float*, const float*, int)> reduce{
//       .name = "reduce",
//       .space = space,
//       .call =
//           [&](const ReduceKnobs& k, kiln::Stream s, float* out, const float* in, int n) {
//             all_reduce(s, out, in, n, k.blocks);
//           },
//       .problem = [](float*, const float*, int n) { return Bytes{4 * n}; },
//       .communicates = true};
//   auto f = kiln::tuned(runtime, reduce);
//   f(stream, out, in, n);                           // tunes a new problem, then calls
//   f.with({.tune = false})(stream, out, in, n);     // the default knobs
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kiln/detail/function_core.hpp"
#include "kiln/runtime.hpp"

namespace kiln {

template <Reflected Knobs, Reflected Problem, class Signature>
struct Function {
  static_assert(!std::is_same_v<Signature, Signature>,
                "a function's signature has the form void(Arguments...)");
};

/// An aggregate: fill in what applies. Its members are called on the thread that calls the tuned
/// function; `prune` and `cost` may be called on any thread.
template <Reflected Knobs, Reflected Problem, class... Args>
struct Function<Knobs, Problem, void(Args...)> {
  static_assert((!std::is_rvalue_reference_v<Args> && ...),
                "tuning calls a function again and again with the same arguments, so none can be "
                "an rvalue reference");

  std::string name{};  ///< letters, digits, '_'; names records and log files
  /// Names the implementation, as a kernel's source does: another version gets its own records.
  std::string version{};
  Space<Knobs, Problem> space;
  /// The function. Its work is timed from before the call until the stream has done what it was
  /// given; on the host, until the call returns. What it throws makes these knobs a failed
  /// candidate while it is tuned, and is passed on otherwise.
  std::function<void(const Knobs&, Stream, Args...)> call{};
  /// Reads what the choice depends on off the arguments. It must be cheap: every call runs it.
  std::function<Problem(const std::remove_reference_t<Args>&...)> problem{};
  /// Maps a problem to the one that it is tuned as, with the arguments of the first call.
  std::function<Problem(const Problem&)> bucket{};
  /// For conditions that the space's constraints cannot express: returns false for knobs that must
  /// not be tried. Pure.
  std::function<bool(const Knobs&, const Problem&, const DeviceLimits&)> prune{};
  /// Saves what a call updates in place (accumulators, arguments that are read and written), and
  /// returns a function that restores it. It is called once before a tuning. The returned function
  /// is called before each call of the tuning, outside the timed region, and when the tuning has
  /// ended, so that the call that tuned finds what any call would.
  std::function<std::function<void(Stream)>(Stream, Args...)> snapshot{};
  /// Whether a call with new knobs gave the right results: false, or an exception that says what is
  /// wrong, disqualifies them. Called after the first call with them, and after the 1st, 2nd, 4th,
  /// 8th and so on of their samples, when the stream has finished. Empty: nothing is verified.
  std::function<bool(Args...)> verify{};
  std::function<double(const Knobs&, const Problem&, const DeviceLimits&)> cost{};  ///< as Kernel
  std::function<std::string(const Knobs&, const Problem&)> numerics{};              ///< as Kernel
  /// Ranks wait for each other inside. Tuning then needs TuneOptions::ranks, and takes one
  /// candidate after the other on all ranks together, with the same number of calls on each. The
  /// calls follow each other at once, with a warm cache, so that waiting for a late rank is not
  /// counted. A call that fails on one rank must come to an end on the others. NCCL's version is
  /// recorded.
  bool communicates = false;
  /// Several short calls may be recorded in a graph and replayed, to time what the device does
  /// alone.
  bool graph_replay = false;
  /// Further versions to record, of libraries that the function uses.
  std::vector<KeyField> versions{};

  /// @throws UserError naming the field that is missing or wrong.
  detail::FunctionDescription description() const;
};

/// How a function is tuned. Two of these can also be set for all functions of a process from
/// outside; the variables are read when the tuned function is made.
struct FunctionOptions {
  std::optional<TuneOptions> tuning{};  ///< instead of RuntimeOptions::tuning
  /// Records are written, but not read: every problem is tuned once in each process. Or
  /// $KILN_ALWAYS_RETUNE, set and not 0.
  bool always_retune = false;
  /// A record made with any other version of hardware or software (see TuneResult::versions) is
  /// tuned again. Off: it is used, with a warning. Or $KILN_STRICT_VERSIONS, set and not 0.
  bool strict_versions = false;
  /// Where each rank writes `<name>.rank-<rank>.log`. Empty: $KILN_RANK_LOGS; if that is empty,
  /// too, no logs are written.
  std::filesystem::path log_folder{};
};

/// Switches of one call.
struct CallOptions {
  bool tune = true;      ///< off: the default knobs, whatever is known of the problem
  bool retune = false;   ///< tunes though the knobs are known
  bool verbose = false;  ///< tells the runtime's log what became of each candidate
  /// The ranks that choose together for this call, which every one of them makes. What they agree
  /// on holds for calls with the same ranks. Null: the ranks in the function's TuneOptions, else
  /// those in the runtime's.
  std::shared_ptr<Communicator> ranks{};
};

template <Reflected Knobs, Reflected Problem, class Signature>
class TunedFunction;

/// A function whose knobs are chosen per problem, once, and then only looked up. Copies share
/// everything. May be called from several threads at once; without ranks also while another thread
/// tunes. A call of a known problem takes no lock and allocates nothing; through `with` it may. A
/// function that calls itself while it is tuned uses what is known, or the default; while ranks
/// tune it together, so does all it calls that the ranks would have to choose for. On a stream that
/// is being captured nothing is looked up in the store, measured or agreed on: a call of a problem
/// that is not known yet is a CaptureError there, before the function runs.
template <Reflected Knobs, Reflected Problem, class... Args>
class TunedFunction<Knobs, Problem, void(Args...)> {
 public:
  using Definition = Function<Knobs, Problem, void(Args...)>;

  /// Calls with the best known knobs for the problem that the arguments describe. In the runtime's
  /// modes other than tune_now a problem without a record gets the default knobs.
  /// @throws UserError, TuningFailedError, EnvironmentError when a new problem cannot be tuned;
  /// what the function throws.
  void operator()(Stream stream, Args... args) const {
    const Problem problem = function_->problem(args...);
    const auto values = values_of(problem);
    const Values* knobs = core_->find(values);
    if (!knobs) knobs = &core_->obtain(values, bound(stream, args...), {});
    function_->call(from_values<Knobs>(*knobs), stream, std::forward<Args>(args)...);
  }

  /// The same, with switches for one call:
  ///   f.with({.verbose = true, .ranks = group})(stream, args...);
  auto with(CallOptions options) const {
    return [self = *this, how = std::move(options)](Stream stream, Args... args) {
      self.call(how, stream, std::forward<Args>(args)...);
    };
  }

  /// Tunes now (or reads the store) and returns what was found; later calls use it. The state that
  /// `snapshot` saves is restored afterwards.
  TuneResult tune(Stream stream, Args... args) const {
    return tune(CallOptions{}, stream, std::forward<Args>(args)...);
  }
  TuneResult tune(const CallOptions& how, Stream stream, Args... args) const {
    const Problem problem = function_->problem(args...);
    return core_->tune(values_of(problem), bound(stream, args...), how);
  }

  /// What the store remembers of a problem; nothing is measured. Nothing when it has no record, or
  /// one of another space.
  std::optional<TuneResult> known(const Problem& problem) const {
    return core_->known(values_of(problem));
  }
  /// The knobs in use for a problem; the default knobs until the problem has been tuned or looked
  /// up.
  Knobs knobs(const Problem& problem) const {
    const Values* found = core_->find(values_of(problem));
    return from_values<Knobs>(found ? *found : core_->default_knobs());
  }

 private:
  friend Region;
  template <Reflected K, Reflected P, class... A>
  friend TunedFunction<K, P, void(A...)> tuned(const Runtime& runtime,
                                               const Function<K, P, void(A...)>& function,
                                               FunctionOptions options);

  TunedFunction(const Runtime& runtime, const Definition& function, FunctionOptions options)
      : function_(std::make_shared<const Definition>(function)),
        core_(detail::make_function_core(runtime, function.description(), std::move(options))) {}

  auto values_of(const Problem& problem) const {
    return to_values(function_->bucket ? function_->bucket(problem) : problem);
  }

  void call(const CallOptions& how, Stream stream, Args... args) const {
    const Values* knobs = &core_->default_knobs();
    if (how.tune) {
      const Problem problem = function_->problem(args...);
      knobs = &core_->obtain(values_of(problem), bound(stream, args...), how);
    }
    function_->call(from_values<Knobs>(*knobs), stream, std::forward<Args>(args)...);
  }

  /// The arguments must outlive it.
  detail::FunctionCall bound(Stream stream, std::remove_reference_t<Args>&... args) const {
    detail::FunctionCall call;
    call.stream = stream;
    call.run = [&](std::span<const std::int64_t> knobs, Stream s) {
      function_->call(from_values<Knobs>(knobs), s, args...);
    };
    if (function_->snapshot)
      call.snapshot = [&](Stream s) { return function_->snapshot(s, args...); };
    if (function_->verify) call.verify = [&] { return function_->verify(args...); };
    return call;
  }

  std::shared_ptr<const Definition> function_;
  std::shared_ptr<detail::FunctionCore> core_;
};

/// Makes the handle of a function. Nothing is measured before its first call.
/// @throws UserError as Function::description.
template <Reflected Knobs, Reflected Problem, class... Args>
TunedFunction<Knobs, Problem, void(Args...)> tuned(
    const Runtime& runtime, const Function<Knobs, Problem, void(Args...)>& function,
    FunctionOptions options = {}) {
  return {runtime, function, std::move(options)};
}

template <Reflected Knobs, Reflected Problem, class... Args>
detail::FunctionDescription Function<Knobs, Problem, void(Args...)>::description() const {
  using Span = std::span<const std::int64_t>;
  if (!call) throw UserError("function " + name + ": `call` is missing");
  if (!problem) throw UserError("function " + name + ": `problem` is missing");
  detail::FunctionDescription d;
  d.name = name;
  d.version = version;
  d.space = space.dynamic();
  if (prune)
    d.space.where("`prune` wants it tried", [f = prune](Span k, Span p, const DeviceLimits& l) {
      return f(from_values<Knobs>(k), from_values<Problem>(p), l);
    });
  for (const FieldInfo& field : field_infos<Problem>()) d.problem_fields.emplace_back(field.name);
  if (cost)
    d.cost = [f = cost](Span k, Span p, const DeviceLimits& l) {
      return f(from_values<Knobs>(k), from_values<Problem>(p), l);
    };
  if (numerics)
    d.numerics = [f = numerics](Span k, Span p) {
      return f(from_values<Knobs>(k), from_values<Problem>(p));
    };
  d.changes_state = static_cast<bool>(snapshot);
  d.communicates = communicates;
  d.graph_replay = graph_replay;
  d.versions = versions;
  return d;
}

}  // namespace kiln
