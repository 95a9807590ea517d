#include "runtime/together/alone_or_together.hpp"

#include <span>
#include <utility>

#include "runtime/together/bench_trials.hpp"
#include "runtime/together/tune_together.hpp"

namespace kiln::runtime {

TuneOutcome tune_alone_or_together(Workshop& workshop, std::unique_ptr<TrialMaker> maker,
                                   const TuneOptions& options, bool for_launch,
                                   const RecordRead& known) {
  if (!options.ranks) return tune_alone(workshop, *maker, options, for_launch, known);
  const auto problem = maker->problem();
  const TunableProblem tuned_problem{maker->subject(), {problem.begin(), problem.end()}};
  BenchTrials::Makers makers;
  makers.push_back(std::move(maker));
  BenchTrials trials(std::move(makers), options);
  TuneOutcome tuned{
      tune_together(workshop, {&tuned_problem, 1}, options, trials, for_launch).front()};
  tuned.ending = ending_of(tuned.result, workshop.may_measure(for_launch));
  tuned.module = trials.take_module(0, tuned.result.winner().config);
  return tuned;
}

}  // namespace kiln::runtime
