#include "runtime/serve/engine.hpp"

#include <algorithm>
#include <thread>

#include <nlohmann/json.hpp>

#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/version.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/support/trace.hpp"
#include "runtime/together/kernel_trials.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln::detail {

using runtime::add_missing;
using runtime::answers;
using runtime::Recall;
using runtime::seconds_since;
using runtime::Version;

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
      // It is the communicator that knows its ranks: odd variables are none of its business.
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

/// Other kernels' and devices' winners that a search tries first.
constexpr std::size_t kStarts = 3;
/// What a search gets at least whose budget went in waiting: enough for the default.
constexpr double kLeastSeconds = 1e-3;
/// Of a launch's budget, the part that may go in waiting. One that begins later would find little,
/// and launches are content with what was found.
constexpr double kMostWaiting = 0.5;

void start(const ReadyKernel& ready, const LaunchGeometry& geometry, Stream stream, void** args) {
  static_cast<const runtime::Device*>(ready.device)
      ->launch(*static_cast<const runtime::LoadedKernel*>(ready.loaded), geometry, stream, args);
}

}  // namespace

Engine::Engine(RuntimeOptions options, std::shared_ptr<runtime::Device> device,
               runtime::Builder::MakeCompiler make_compiler)
    : Engine(completed(std::move(options)), nullptr, std::move(device), std::move(make_compiler)) {}

Engine::Engine(RuntimeOptions options, std::shared_ptr<cache::Store> store,
               std::shared_ptr<runtime::Device> device,
               runtime::Builder::MakeCompiler make_compiler)
    : options_(std::move(options)),
      store_(store ? std::move(store) : std::make_shared<cache::Store>(options_.store)),
      device_(std::move(device)),
      builder_(
          store_, std::move(make_compiler), options_.log, options_.compile_threads,
          may_compile() ? runtime::Builder::Access::compile : runtime::Builder::Access::look_up),
      starting_points_(store_) {
  check_roots(*store_, options_.mode);
}

RuntimeStatistics Engine::statistics() { return {builder_.compiled(), tuned_, store_->stats()}; }

Key Engine::key(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                const std::optional<Digest>& source) {
  return runtime::record_key(kernel, problem, device_->info(), source);
}

std::vector<Version> Engine::versions() {
  std::vector<Version> versions{{"kiln", KILN_VERSION, Version::Rule::ignore}};
  if (may_compile()) try {
      const codegen::CompilerIdentity id =
          builder_.compiler(device_->info().target.kind).identity();
      versions.push_back(
          {"compiler", id.name + " " + id.version + " " + id.build, Version::Rule::retune});
    } catch (const EnvironmentError&) {
      // Without a compiler there is no better record to be had.
    }
  for (const KeyField& f : device_->info().software)
    versions.push_back({f.name, f.value, Version::Rule::ignore});
  return versions;
}

std::optional<Recall> Engine::recall(const KernelDefinition& kernel,
                                     std::span<const std::int64_t> problem) {
  const auto source = builder_.kernel_source(kernel);
  const Key key = this->key(kernel, problem, source);
  if (source)
    if (const auto record = store_->find_record(key))
      if (auto known = runtime::from_json(*record, kernel, problem, device_->info(), versions()))
        return known;
  // What was shipped with the program was tuned for it, whatever compiler is here.
  const auto same_source = [&](const Key& found) { return !source || found == key; };
  if (const auto found =
          store_->find_portable(EntryKind::record, key.portable, !source, same_source)) {
    const auto text = found->payload.view();
    const auto record = nlohmann::json::parse(
        std::string_view(reinterpret_cast<const char*>(text.data()), text.size()), nullptr, false);
    return runtime::from_json(record, kernel, problem, device_->info(), {});
  }
  return {};
}

TuneResult Engine::tune(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                        const TuneOptions& options, bool for_launch) {
  if (const TuneOptions shared = with_ranks(options); shared.ranks) {
    const runtime::Subject subject{&kernel, {problem.begin(), problem.end()}};
    runtime::KernelTrials trials(device_, builder_, {&subject, 1}, shared);
    return tune_together({&subject, 1}, shared, trials, for_launch).front();
  }
  runtime::check(options);
  const auto start = runtime::Clock::now();
  const bool waits = !for_launch || options_.while_busy == WhileBusy::wait;
  const auto deadline =
      waits ? runtime::TimeLimit(options.max_seconds * (for_launch ? kMostWaiting : 1), start)
            : runtime::TimeLimit::already_passed();
  auto known = recall(kernel, problem);
  if (known && (answers(*known, options, for_launch) || !may_compile())) return known->result;
  if (!may_compile())
    throw UserError(
        format("kernel {} {}: there is no record, and in the modes lookup_only, frozen and "
               "collect nothing is tuned",
               kernel.name, kernel.describe_problem(problem)));
  const auto waited_in_vain = [&] {
    const bool stopped = options.stop.stop_requested();
    const SearchEnd end = stopped ? SearchEnd::stopped : SearchEnd::seconds;
    TuneResult result =
        known ? known->result
              : runtime::not_tuned(kernel, problem, device_->info(), end,
                                   stopped ? "the run was stopped before"
                                           : "the budget went in waiting for another tuning");
    result.end = end;
    result.wall_seconds = seconds_since(start);
    return result;
  };
  auto turn = turn_.take(runtime::TimeLimit::already_passed());
  if (!turn && waits) {
    // What is launched if the wait is in vain is compiled meanwhile, not afterwards.
    if (for_launch)
      builder_.build(kernel, kernel.space.default_config(device_->info().target.kind),
                     device_->info().target);
    turn = turn_.take(deadline, options.stop);
    if (for_launch && deadline.passed()) return waited_in_vain();
  }
  if (!turn) return waited_in_vain();
  const Key key = this->key(kernel, problem, builder_.kernel_source(kernel));
  // Another thread may have tuned it meanwhile, or another process may be at it: two searches would
  // disturb each other's clocks. What the other has saved so far may do.
  cache::WorkLock alone;
  const auto given_up = [&] { return options.stop.stop_requested() || deadline.passed(); };
  for (;;) {
    known = recall(kernel, problem);
    if (known && answers(*known, options, for_launch)) return known->result;
    if (alone.held()) break;
    const auto outcome = store_->lock(EntryKind::record, key, alone, given_up);
    if (outcome == cache::WorkLock::Outcome::unusable) break;
    if (!alone.held() && given_up()) return waited_in_vain();
  }
  TuneOptions left = options;  // the wait is a part of the budget
  if (left.max_seconds > 0)
    left.max_seconds = std::max(left.max_seconds - seconds_since(start), kLeastSeconds);
  const std::vector<Version> software = versions();
  runtime::TuneContext context;
  if (known && !options.retune) context.prior = &known->result;
  if (known) context.incumbent = known->result.winner().config;
  context.starts = starting_points_.nearest(kernel, problem, device_->info(), kStarts);
  // What was measured earlier is not lost before it is measured again.
  const auto completed = [&](TuneResult result) {
    if (known && options.retune) add_missing(result, known->result);
    return result;
  };
  // Whoever took this search for dead, or went on without the lock, may have written meanwhile.
  const auto save = [&](TuneResult& result) {
    const auto latest = recall(kernel, problem);
    if (latest && latest->same_space && !options.retune) {
      if (latest->result.complete && !result.complete) return false;
      add_missing(result, latest->result);
    }
    const nlohmann::json record = runtime::to_json(result, kernel, software);
    store_->put_record(key, record);
    starting_points_.add(key, record);
    return true;
  };
  const auto has_winner = [](const TuneResult& result) {
    return result.winner().status == CandidateStatus::measured;
  };
  context.save = [&](const TuneResult& unfinished) {
    if (!has_winner(unfinished)) return;
    TuneResult result = completed(unfinished);
    save(result);
  };
  TuneResult result = runtime::tune(kernel, problem, device_, builder_, left, context);
  if (!has_winner(result) && known) {  // stopped too early
    TuneResult stays = known->result;
    stays.end = SearchEnd::stopped;
    return stays;
  }
  result.wall_seconds = seconds_since(start);
  for (const Version& v : software) result.versions.push_back({v.name, v.value});
  if (!has_winner(result)) return result;
  result = completed(std::move(result));
  save(result);
  ++tuned_;
  // Whoever asked for a tuning reads its result; a launch has nobody else to tell.
  if (for_launch)
    for (const std::string& text : result.warnings)
      log(LogLevel::warning, kernel.name + ": " + text);
  log(LogLevel::info, format("{} {}: {} ({:.3g} ms, {:.2f} times the default's speed)", kernel.name,
                             kernel.describe_problem(problem), result.describe(result.winner()),
                             result.winner().seconds * 1e3, result.speedup()));
  return result;
}

TuneResult Engine::time(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                        const TuneOptions& options) {
  runtime::check(options);
  if (!may_compile())
    throw UserError(
        format("kernel {} {}: in the modes lookup_only, frozen and collect nothing "
               "is timed",
               kernel.name, kernel.describe_problem(problem)));
  const auto start = runtime::Clock::now();
  const auto turn = turn_.take(runtime::TimeLimit(options.max_seconds, start), options.stop);
  if (!turn)
    return runtime::not_tuned(
        kernel, problem, device_->info(),
        options.stop.stop_requested() ? SearchEnd::stopped : SearchEnd::seconds,
        "another tuning took all of the time");
  TuneOptions left;
  left.seed = options.seed;
  left.cold_cache = options.cold_cache;
  left.stop = options.stop;
  left.progress = options.progress;
  if (options.max_seconds > 0)
    left.max_seconds = std::max(options.max_seconds - seconds_since(start), kLeastSeconds);
  const Values& config = kernel.space.default_config(device_->info().target.kind);
  runtime::TuneContext context;
  context.only = {&config, 1};
  context.finals = false;
  TuneResult result = runtime::tune(kernel, problem, device_, builder_, left, context);
  result.wall_seconds = seconds_since(start);
  return result;
}

void Engine::remember(const KernelDefinition& kernel, const TuneResult& result) {
  const Key key = this->key(kernel, result.problem, builder_.kernel_source(kernel));
  const nlohmann::json record = runtime::to_json(result, kernel, versions());
  store_->put_record(key, record);
  starting_points_.add(key, record);
}

std::variant<ReadyKernel, Missing> Engine::make_ready(const KernelDefinition& kernel,
                                                      std::span<const std::int64_t> problem,
                                                      std::span<const std::int64_t> config) {
  const LaunchGeometry geometry = kernel.geometry(config, problem);
  const std::string impossible = runtime::launch_problem(geometry, device_->info().limits);
  if (!impossible.empty())
    throw UserError(format("kernel {} with {} for {}: {}", kernel.name,
                           kernel.space.describe(config), kernel.describe_problem(problem),
                           impossible));
  runtime::Build build = builder_.build(kernel, config, device_->info().target);
  if (auto* failure = std::get_if<CompileFailure>(&build.outcome))
    throw CompileError(std::move(*failure));
  if (auto* missing = std::get_if<Missing>(&build.outcome)) {
    want(kernel, problem, config);
    return std::move(*missing);
  }
  std::shared_ptr<const runtime::LoadedKernel> loaded =
      device_->load(*build.binary(), geometry.shared_bytes);
  ReadyKernel ready;
  ready.problem.assign(problem.begin(), problem.end());
  ready.config.assign(config.begin(), config.end());
  ready.device = device_.get();
  ready.loaded = loaded.get();
  ready.owner = loaded;
  ready.start = start;
  return ready;
}

void Engine::want(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                  std::span<const std::int64_t> config) {
  WantedInstance wanted{kernel.name, kernel.types, device_->info().target.arch, {}, {}};
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
