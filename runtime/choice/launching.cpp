// What launches of a choice's problems do with what was decided.
#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/choice/in_use.hpp"
#include "runtime/choice/not_captured.hpp"
#include "runtime/choice/tuned_choice_core.hpp"
#include "runtime/ranks/messages.hpp"
#include "runtime/serve/not_for_problem.hpp"

namespace kiln::detail {

using runtime::in_use_of;
using runtime::InUse;
using runtime::lacks_something_now;
using runtime::NotCaptured;
using runtime::NotForProblem;

namespace {

/// The problems of a bucket that launches have used.
std::set<Values> known_problems(const runtime::Problems& problems,
                                const KernelDefinition& operation, const ProblemValues& bucket) {
  std::set<Values> known;
  for (const Ready& ready : problems.loaded())
    if (Values problem(ready->problem.begin(), ready->problem.end());
        operation.bucketed(problem) == bucket)
      known.insert(std::move(problem));
  return known;
}

}  // namespace

void TunedChoiceCore::use(Span problem, const ProblemValues& bucket, Decision decision,
                          bool at_once) {
  const auto decided = std::make_shared<const Decision>(std::move(decision));
  if ((!switches_.forced && !lacks_something_now(*decided)) || decided->by_ranks)
    tuner_.decide(bucket, decided);
  std::set<Values> problems = known_problems(problems_, choice_.operation, bucket);
  problems.emplace(problem.begin(), problem.end());
  std::exception_ptr failed;
  for (const Values& each : problems) try {
      problems_.choose(ready(each, *decided, at_once));
      stay(each);
    } catch (...) {
      if (!failed) failed = std::current_exception();
      if (!decided->by_ranks) continue;
      Launchable not_ready;
      not_ready.problem = each;
      problems_.choose(std::move(not_ready));
    }
  if (failed) std::rethrow_exception(failed);
}

void TunedChoiceCore::stay(Span problem) const {
  if (!problems_.pinned(problem)) return;
  if (const Ready known = in_use(problem); known && known->loaded) in_use_of(*known).call->stay();
}

void TunedChoiceCore::reserve_workspace(Stream stream, Span problem) {
  if (const Ready known = in_use(problem); known && known->loaded)
    in_use_of(*known).call->reserve(stream);
}

Launchable TunedChoiceCore::ready(Span problem, const Decision& decision, bool at_once) {
  if (switches_.forced) return launchable(problem, decision);
  // Ranks may count as failed what has only not been compared.
  if (!decision.by_ranks) tuner_.note_failed(decision.field, decision.failed);
  std::string why = "it has failed";
  bool may_pass = false;
  std::optional<Missing> missing;
  const auto tried = [&](const Decision& candidate) -> std::optional<Launchable> {
    if (decision.failed.contains(candidate.config)) return {};
    const bool first = &candidate == &decision;
    if (at_once && !tuner_.can_launch_at_once(candidate, problem)) {
      if (first) why = "its kernel has nothing in use";
      return {};
    }
    try {
      return launchable(problem, candidate, may_pass);
    } catch (const NotForProblem& error) {
      if (first) why = error.what();
    } catch (const runtime::DeviceLost&) {
      throw;
    } catch (const Error& error) {
      if (decision.by_ranks) throw;
      if (const auto* lacking = dynamic_cast<const MissingError*>(&error); lacking && !missing)
        missing = lacking->missing();
      if (first) why = error.what();
      may_pass = may_pass || first;
    }
    return {};
  };
  if (auto made = tried(decision)) return std::move(*made);
  engine_->log(LogLevel::warning,
               format("choice {} for {}: {} cannot be used, so another candidate is: {}",
                      choice_.name, choice_.operation.describe_problem(problem),
                      decision.field.subject.space.describe(decision.config), why));
  Decision exact = tuner_.first_of(problem, decision);
  // The winning alternative's come first: it may describe the same candidate differently here.
  std::vector<Values> candidates = exact.field.subject.configs;
  std::ranges::stable_partition(candidates,
                                [&](const Values& c) { return c[0] == decision.config[0]; });
  for (Values& candidate : candidates) {
    exact.config = std::move(candidate);
    if (auto made = tried(exact)) return std::move(*made);
  }
  if (missing) throw MissingError(*missing);
  throw UserError(format("choice {} for {}: no candidate can be used: {}", choice_.name,
                         choice_.operation.describe_problem(problem), why));
}

Launchable TunedChoiceCore::launchable(Span problem, const Decision& decision, bool provisional) {
  const auto [index, candidate] = decision.field.place(decision.config);
  Contender& contender = *contenders_[index];
  const AlternativeDescription& what = contender.what();
  const std::optional<Values>& kernel = decision.kernels[index];
  if (const std::string why = contender.unsupported(problem, engine_->device()->info());
      !why.empty())
    throw NotForProblem(format("alternative {}: {}", what.name, why));
  // Read before the kernel is loaded, so it is of the source that is loaded or of an earlier one.
  const std::string identity = kernel ? contender.identity(problem) : std::string();
  if (decision.by_ranks && what.kernel && !kernel)
    throw EnvironmentError(
        format("alternative {}: this rank has no config of it to launch", what.name));
  const auto in_use =
      std::make_shared<InUse>(contender.ready(problem, candidate, kernel), what.name,
                              decision.field.subject.space.describe(decision.config),
                              provisional || lacks_something_now(decision));
  if (!what.capturable)
    in_use->call = std::make_shared<const NotCaptured>(
        std::move(in_use->call), *engine_,
        format("choice {} for {}: the alternative {} cannot be captured", choice_.name,
               choice_.operation.describe_problem(problem), what.name));
  if (problems_.pinned(problem)) in_use->call->stay();
  Launchable made;
  made.problem.assign(problem.begin(), problem.end());
  // What is launched: other fields have other parameters.
  made.config = {decision.config[0]};
  made.config.insert(made.config.end(), candidate.begin(), candidate.end());
  if (kernel) {
    made.config.insert(made.config.end(), kernel->begin(), kernel->end());
    made.config.push_back(static_cast<std::int64_t>(runtime::ranks::short_digest(identity)));
  }
  made.loaded = in_use.get();
  made.owner = in_use;
  made.start = [](const Launchable& self, const Launch&, Span, Stream stream, void** args) {
    (*in_use_of(self).call)(stream, args);
  };
  return made;
}

}  // namespace kiln::detail
