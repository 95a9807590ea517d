#include "runtime/serve/engine.hpp"

#include <algorithm>
#include <map>
#include <thread>
#include <tuple>

#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "kiln/version.hpp"
#include "runtime/serve/provisions.hpp"
#include "runtime/serve/wanted_file.hpp"
#include "runtime/together/alone_or_together.hpp"
#include "runtime/tune/kernel_maker.hpp"
#include "runtime/tune/tuning_session.hpp"

namespace kiln::detail {

namespace {

/// Handles that come and go may each leave some unprepared problems behind.
constexpr std::size_t kMostUnprepared = 4096;
constexpr std::size_t kEvictedAtOnce = 16;
constexpr std::size_t kMostProblems = 1 << 16;
constexpr std::uint64_t kMostModuleBytes = std::uint64_t{4} << 30;

RuntimeOptions completed(RuntimeOptions options) {
  options = runtime::with_variables(std::move(options));
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

void check(const BackgroundOptions& options) {
  if (!(options.duty >= 0) || options.duty > 1)
    throw UserError(format("BackgroundOptions::duty is {}; a share of time from 0 to 1 is needed",
                           options.duty));
}

/// Times that were taken on one are those of the other.
void check_same_kind(const DeviceInfo& own, const DeviceInfo& other) {
  const auto refuse = [&](const std::string& why) {
    throw UserError(format("BackgroundOptions::device is {}: {}", other.id, why));
  };
  if (own.id == other.id) refuse("it is the runtime's own device; leave it empty to use windows");
  if (own.target != other.target)
    refuse(format("it runs {}, the runtime's device {}", other.target.arch, own.target.arch));
  for (const KeyField& field : own.fingerprint)
    if (const auto same = std::ranges::find(other.fingerprint, field.name, &KeyField::name);
        same == other.fingerprint.end() || same->value != field.value)
      refuse(format("it is of another kind: {} is {}, and {} for the runtime's device", field.name,
                    same == other.fingerprint.end() ? "unknown" : same->value, field.value));
  if (own.fingerprint.size() != other.fingerprint.size()) refuse("it is of another kind");
}

}  // namespace

Engine::Engine(RuntimeOptions options, std::shared_ptr<runtime::Device> device,
               runtime::Builder::MakeCompiler make_compiler,
               std::shared_ptr<runtime::Device> background)
    : Engine(Completed{completed(std::move(options))}, nullptr, std::move(device),
             std::move(make_compiler), std::move(background)) {}

Engine::Engine(RuntimeOptions options, std::shared_ptr<cache::Store> store,
               std::shared_ptr<runtime::Device> device,
               runtime::Builder::MakeCompiler make_compiler)
    : Engine(Completed{completed(std::move(options))}, std::move(store), std::move(device),
             std::move(make_compiler), nullptr) {}

Engine::Engine(const Completed& completed, std::shared_ptr<cache::Store> store,
               std::shared_ptr<runtime::Device> device,
               runtime::Builder::MakeCompiler make_compiler,
               std::shared_ptr<runtime::Device> background)
    : workshop_(completed.options, std::move(store), std::move(device), std::move(make_compiler),
                telemetry_of(completed.options)),
      captures_(workshop_.device()) {
  check_roots(*this->store(), *this->options().mode);
  check(this->options().background);
  runtime::warn_of_unknown_variables(this->options().log);
  if (background) check_same_kind(this->device()->info(), background->info());
  if (this->options().mode == Mode::background) background_.emplace(*this, std::move(background));
}

runtime::Background& Engine::background_or_throw() {
  if (background_) return *background_;
  throw UserError("windows and commits are for a runtime in mode background");
}

Engine::~Engine() {
  if (wanted_file_.empty() || wanted_.empty()) return;
  try {
    runtime::add_to_manifest(wanted_file_, {std::move(wanted_)});
  } catch (const std::exception& error) {
    try {
      log(LogLevel::warning,
          format("KILN_WANTED: what was missing is not noted: {}", error.what()));
    } catch (...) {
      // A sink must not throw.
    }
  }
}

RuntimeMetrics Engine::metrics() {
  RuntimeMetrics metrics;
  workshop_.telemetry().counters.read(metrics);
  std::string driver;
  for (const KeyField& field : device()->info().software)
    if (field.name == "cuda_driver") driver = field.value;
  metrics.build_info[{KILN_VERSION, builder().compiler_version(Target::Kind::cuda), driver}] = 1;
  const StoreStatistics stats = store()->stats();
  metrics.store_lookups_total = {{{"memory", "hit"}, stats.memory_hits},
                                 {{"disk", "hit"}, stats.disk_hits},
                                 {{"roots", "hit"}, stats.root_hits},
                                 {{"disk", "damaged"}, stats.damaged},
                                 {{"all", "miss"}, stats.misses}};
  metrics.store_bytes = stats.bytes;
  metrics.store_files = stats.binaries + stats.records;
  const runtime::LoadedModules& loaded = *device()->loaded_modules();
  metrics.modules_loaded = static_cast<std::uint64_t>(std::max<std::int64_t>(0, loaded.modules));
  metrics.module_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(0, loaded.bytes));
  return metrics;
}

RuntimeStatistics Engine::statistics() {
  RuntimeStatistics now;
  now.compiled = builder().compiled();
  now.tuned = workshop_.tuned();
  now.unprepared_served = serving_.unprepared_served();
  now.unprepared_refused = serving_.unprepared_refused();
  now.provisional = captures_.provisional();
  now.capture_errors = captures_.errors();
  now.store = store()->stats();
  return now;
}

TuneOptions Engine::with_ranks(TuneOptions tuning) const {
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
  auto maker = std::make_unique<runtime::KernelMaker>(
      kernel, problem, device ? std::move(device) : this->device(), builder(), tuning.seed,
      workshop_.trusted_references(), runtime::worker_options(tuning));
  const bool in_step = tuning.ranks && tuning.together.lockstep;
  if (workshop_.isolation() == Isolation::always && !in_step) maker->isolate();
  return maker;
}

runtime::TuneOutcome Engine::tune(const KernelDefinition& kernel,
                                  std::span<const std::int64_t> problem, const TuneOptions& tuning,
                                  bool for_launch, const runtime::Read& known) {
  return runtime::tune_alone_or_together(workshop_, maker(kernel, problem, tuning), tuning,
                                         for_launch, known);
}

WantedInstance Engine::wanted_instance(const KernelDefinition& kernel,
                                       std::span<const std::int64_t> problem,
                                       std::span<const std::int64_t> config) const {
  const Tunable what(kernel);
  return {kernel.name, kernel.types, device()->info().target.arch, what.named_problem(problem),
          what.named_config(config)};
}

void Engine::want(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                  std::span<const std::int64_t> config) {
  WantedInstance wanted = wanted_instance(kernel, problem, config);
  std::lock_guard lock(wanted_mutex_);
  if (config.empty() && wanted_.size() >= kMostUnprepared) return;
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

// A launch does not look whether it is captured, so only the program knows what its graphs need.
std::size_t Engine::max_problems() const {
  return options().max_problems.value_or(device()->graphs() ? 0 : kMostProblems);
}

std::uint64_t Engine::max_module_bytes() const {
  return options().max_module_bytes.value_or(device()->graphs() ? 0 : kMostModuleBytes);
}

void Engine::dispose(std::shared_ptr<const void> what) noexcept {
  if (!device()->graphs()) return;
  // CUDA waits for all running kernels when it unloads a module.
  struct Last {
    std::shared_ptr<runtime::Device> device;
    std::shared_ptr<const void> what;
    std::shared_ptr<std::atomic<int>> waiting;
    ~Last() {
      what.reset();
      --*waiting;
    }
  };
  try {
    auto last = std::make_shared<Last>(device(), nullptr, disposing_);
    ++*disposing_;
    last->what = std::move(what);
    runtime::Reaper::release(reaper_.hold(std::move(last)));
  } catch (const std::exception&) {
    // No thread can be started: it is destroyed here.
  }
}

void Engine::keep_to_module_bytes() {
  if (serving_.sealed()) return;  // nothing leaves
  const std::uint64_t most = max_module_bytes();
  const auto over = [&] {
    const std::int64_t bytes = device()->loaded_modules()->bytes;
    return most != 0 && bytes > 0 && static_cast<std::uint64_t>(bytes) > most;
  };
  if (!over()) return;
  const std::unique_lock alone(evicting_, std::try_to_lock);
  if (!alone) return;
  const std::int64_t before = device()->loaded_modules()->bytes;
  if (before == stuck_at_) return;
  // What has left counts until it is unloaded: by this thread, when no launch uses it, or by
  // another.
  const auto unloads = [&](runtime::Problems& problems) {
    problems.reclaim();
    return problems.waiting() || *disposing_ > 0;
  };
  const auto handles = serving_.handles();
  for (const auto& handle : handles)
    if (unloads(handle->problems())) return;
  // The first round takes what was not used since the last one, and the second what was not used
  // since the first.
  for (int round = 0; round < 2; ++round)
    for (const auto& handle : handles)
      while (over() && handle->problems().evict(kEvictedAtOnce) != 0)
        if (unloads(handle->problems())) return;
  stuck_at_ = over() ? device()->loaded_modules()->bytes.load() : 0;
}

Manifest Engine::wanted() const {
  Manifest manifest;
  {
    std::lock_guard lock(wanted_mutex_);
    manifest.wanted = wanted_;
  }
  // A problem of which a binary is missing is listed with that binary already.
  const auto problem_of = [](const WantedInstance& w) {
    return std::tie(w.kernel, w.types, w.problem);
  };
  std::set<std::tuple<std::string, std::vector<std::string>, std::map<std::string, std::int64_t>>>
      listed;
  for (const WantedInstance& w : manifest.wanted) listed.insert(problem_of(w));
  for (const auto& handle : serving_.handles())
    for (const Values& problem : handle->provisions().launched_unprepared()) {
      WantedInstance wanted = wanted_instance(handle->definition(), problem, {});
      if (listed.insert(problem_of(wanted)).second) manifest.wanted.push_back(std::move(wanted));
    }
  return manifest;
}

}  // namespace kiln::detail
