#include "runtime/serve/engine.hpp"

#include <algorithm>
#include <thread>

#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"
#include "runtime/together/bench_trials.hpp"
#include "runtime/together/tune_together.hpp"
#include "runtime/tune/kernel_maker.hpp"
#include "runtime/tune/tuning_session.hpp"

namespace kiln::detail {

namespace {

RuntimeOptions completed(RuntimeOptions options) {
  if (!options.store.log) options.store.log = options.log;
  if (options.mode == Mode::frozen) options.store.disk = false;
  if (options.compile_threads == 0 && options.tuning.ranks) {
    unsigned share = 1;
    try {
      if (const auto place = rank_place_from_environment())
        share = static_cast<unsigned>(std::max(1, place->local_size));
    } catch (const UserError&) {
      // The communicator knows its own ranks; malformed launcher variables do not matter here.
    }
    options.compile_threads = std::max(1U, std::thread::hardware_concurrency() / share);
  }
  return options;
}

/// A frozen runtime has nothing but its roots, so one that cannot be used is not a matter of speed.
void check_roots(cache::Store& store, Mode mode) {
  if (mode != Mode::frozen) return;
  std::string problems;
  for (const std::string& problem : store.root_problems()) problems += "\n  " + problem;
  if (!problems.empty())
    throw EnvironmentError("a frozen runtime cannot use all of its roots:" + problems);
  if (!store.has_roots())
    throw UserError(
        "a frozen runtime needs a bundle: name it in StoreOptions::roots or KILN_ROOTS");
}

}  // namespace

Engine::Engine(RuntimeOptions options, std::shared_ptr<runtime::Device> device,
               runtime::Builder::MakeCompiler make_compiler)
    : Engine(completed(std::move(options)), nullptr, std::move(device), std::move(make_compiler)) {}

Engine::Engine(RuntimeOptions options, std::shared_ptr<cache::Store> store,
               std::shared_ptr<runtime::Device> device,
               runtime::Builder::MakeCompiler make_compiler)
    : workshop_(std::move(options), std::move(store), std::move(device), std::move(make_compiler)) {
  check_roots(*this->store(), this->options().mode);
}

RuntimeStatistics Engine::statistics() {
  return {builder().compiled(), workshop_.tuned(), store()->stats()};
}

TuneOptions Engine::with_ranks(TuneOptions tuning) const {
  const TuneOptions& common = options().tuning;
  if (!tuning.ranks && common.ranks) {
    tuning.ranks = common.ranks;
    tuning.together = common.together;
  }
  return tuning;
}

std::unique_ptr<runtime::TrialMaker> Engine::maker(const KernelDefinition& kernel,
                                                   std::span<const std::int64_t> problem,
                                                   const TuneOptions& tuning) {
  auto maker = std::make_unique<runtime::KernelMaker>(kernel, problem, device(), builder(),
                                                      tuning.seed, workshop_.trusted_references(),
                                                      runtime::worker_options(tuning));
  const bool in_step = tuning.ranks && tuning.together.lockstep;
  if (workshop_.isolation() == Isolation::always && !in_step) maker->isolate();
  return maker;
}

runtime::TuneOutcome Engine::tune(const KernelDefinition& kernel,
                                  std::span<const std::int64_t> problem, const TuneOptions& tuning,
                                  bool for_launch, const runtime::Read& known) {
  auto maker = this->maker(kernel, problem, tuning);
  if (!tuning.ranks) return runtime::tune_alone(workshop_, *maker, tuning, for_launch, known);
  const runtime::Subject subject{kernel, {problem.begin(), problem.end()}};
  runtime::BenchTrials::Makers makers;
  makers.push_back(std::move(maker));
  runtime::BenchTrials trials(std::move(makers), tuning);
  return {runtime::tune_together(workshop_, {&subject, 1}, tuning, trials, for_launch).front()};
}

void Engine::want(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                  std::span<const std::int64_t> config) {
  WantedInstance wanted{kernel.name, kernel.types, device()->info().target.arch, {}, {}};
  for (std::size_t i = 0; i < problem.size(); ++i)
    wanted.problem[kernel.problem_fields[i]] = problem[i];
  for (std::size_t i = 0; i < config.size(); ++i)
    wanted.config[kernel.space.parameters()[i].name] = config[i];
  std::lock_guard lock(wanted_mutex_);
  if (std::find(wanted_.begin(), wanted_.end(), wanted) == wanted_.end())
    wanted_.push_back(std::move(wanted));
}

void Engine::warn_of(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                     const Missing& missing, const std::string& what_follows) {
  {
    std::lock_guard lock(wanted_mutex_);
    if (!warned_of_.insert(missing.wanted.portable).second) return;
  }
  log(LogLevel::warning, format("{} {}: {}: {}", kernel.name, kernel.describe_problem(problem),
                                what_follows, missing.explain()));
}

Manifest Engine::wanted() const {
  std::lock_guard lock(wanted_mutex_);
  return {wanted_};
}

}  // namespace kiln::detail
