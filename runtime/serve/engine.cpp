#include "runtime/serve/engine.hpp"

#include <algorithm>

#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/serve/overdue.hpp"
#include "runtime/tune/kernel_maker.hpp"

namespace kiln::detail {

namespace {

RuntimeOptions completed_options(RuntimeOptions options) {
  options = runtime::with_variables(std::move(options));
  if (!options.store.log) options.store.log = options.log;
  if (options.mode == Mode::frozen) options.store.disk = false;
  return options;
}

/// The ranks on this machine, as far as a launcher has told; 1 where the runtime has none.
unsigned local_ranks(const RuntimeOptions& options) {
  if (options.tuning.ranks) try {
      if (const auto place = rank_place_from_environment())
        return static_cast<unsigned>(std::max(1, place->local_size));
    } catch (const UserError&) {
      // The communicator knows its own ranks; malformed launcher variables do not matter here.
    }
  return 1;
}

std::shared_ptr<runtime::Telemetry> telemetry_of(const RuntimeOptions& options) {
  return std::make_shared<runtime::Telemetry>(
      options.spans, runtime::trace_from_environment(options), options.log);
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
    : Engine(std::move(options), nullptr, std::move(device), std::move(make_compiler)) {}

Engine::Engine(RuntimeOptions options, std::shared_ptr<cache::Store> store,
               std::shared_ptr<runtime::Device> device,
               runtime::Builder::MakeCompiler make_compiler)
    : Engine(Completed{completed_options(std::move(options))}, std::move(store), std::move(device),
             std::move(make_compiler)) {}

Engine::Engine(const Completed& completed, std::shared_ptr<cache::Store> store,
               std::shared_ptr<runtime::Device> device,
               runtime::Builder::MakeCompiler make_compiler)
    : workshop_(completed.options, std::move(store), std::move(device), std::move(make_compiler),
                telemetry_of(completed.options), local_ranks(completed.options)),
      captures_(workshop_.device()),
      wanted_(this->device()->info().target.arch, runtime::wanted_from_environment(),
              this->options().log),
      bounds_(this->options(), this->device(), serving_) {
  check_roots(*this->store(), *this->options().mode);
  runtime::warn_of_unknown_variables(this->options().log);
}

TuneOptions Engine::completed(TuneOptions tuning) const {
  const TuneOptions& common = options().tuning;
  if (!tuning.ranks && common.ranks) {
    tuning.ranks = common.ranks;
    tuning.together = common.together;
  }
  if (!tuning.max_seconds) tuning.max_seconds = limits_.seconds;
  if (!tuning.max_evaluations) tuning.max_evaluations = limits_.evaluations;
  if (!tuning.launching) tuning.launching = limits_.launching;
  return tuning;
}

std::unique_ptr<runtime::KernelMaker> Engine::maker(const KernelDefinition& kernel,
                                                    std::span<const std::int64_t> problem,
                                                    const TuneOptions& tuning,
                                                    std::shared_ptr<runtime::Device> device) {
  const bool in_step = tuning.ranks && tuning.together.lockstep;
  runtime::WorkerOptions worker = runtime::worker_options(tuning);
  worker.restarted = [&restarts = workshop_.telemetry().counters.worker_restarts](
                         std::string_view cause) { restarts.add(cause); };
  auto maker = std::make_unique<runtime::KernelMaker>(
      kernel, problem, device ? std::move(device) : this->device(), builder(), tuning.seed,
      workshop_.trusted_references(), std::move(worker));
  maker->watch(runtime::tell_of_overdue(
      *this, format("{} for {}", kernel.name, kernel.describe_problem(problem))));
  maker->use_drawn(drawn_.take(kernel, problem, tuning.seed));
  if (workshop_.isolation() == Isolation::always && !in_step) maker->isolate();
  return maker;
}

void Engine::note_allocation(const WantedInstance& wanted, const WorkspaceSize& size) {
  ++workshop_.telemetry().counters.workspace_allocations;
  const auto sealed = serving_.sealed();
  if (!sealed || *sealed == OnUnprepared::serve) return;
  if (workshop_.turn().mine() || workshop_.turn_alone().mine()) return;  // it is a tuning's launch
  const std::string text =
      format("{} {}: the stream of a launch has no workspace of {}, and the runtime is sealed",
             wanted.is_choice ? "choice" : "kernel", wanted.kernel, runtime::describe(size));
  if (*sealed == OnUnprepared::warn) return log(LogLevel::warning, text);
  throw UnpreparedError(
      text + "; name the stream in PrepareOptions::streams, or reserve the workspace before",
      wanted);
}

}  // namespace kiln::detail
