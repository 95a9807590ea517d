#include "runtime/engine.hpp"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "runtime/candidates.hpp"
#include "runtime/resource_check.hpp"
#include "runtime/tuner.hpp"

namespace kiln::detail {

using runtime::Recall;
using runtime::Version;

namespace {

RuntimeOptions completed(RuntimeOptions options) {
  if (!options.store.log) options.store.log = options.log;
  return options;
}

/// Other kernels' and devices' winners that a search tries first.
constexpr std::size_t kStarts = 3;

/// A stored answer suffices when it is what the search that is asked for would at best come to.
bool answers(const Recall& recall, const TuneOptions& options, bool for_launch) {
  const TuneResult& known = recall.result;
  if (options.retune || !recall.same_space) return false;
  if (for_launch) return true;
  if (options.max_evaluations != 0 &&
      static_cast<std::size_t>(std::count_if(known.candidates.begin(), known.candidates.end(),
                                             runtime::was_built)) >= options.max_evaluations)
    return true;
  if (options.target_seconds > 0 && known.winner().seconds <= options.target_seconds) return true;
  return known.complete && (options.strategy.empty() || options.strategy == known.strategy ||
                            static_cast<double>(known.candidates.size()) >= known.space.allowed);
}

/// Candidates of an earlier run that this one has not come to.
void add_missing(TuneResult& result, const TuneResult& earlier) {
  std::set<Values> there;
  for (const Candidate& c : result.candidates) there.insert(c.config);
  for (const Candidate& c : earlier.candidates)
    if (runtime::was_built(c) && there.insert(c.config).second) result.candidates.push_back(c);
}

void start(const ReadyKernel& ready, const LaunchGeometry& geometry, Stream stream, void** args) {
  static_cast<const runtime::Device*>(ready.device)
      ->launch(*static_cast<const runtime::LoadedKernel*>(ready.loaded), geometry, stream, args);
}

}  // namespace

Engine::Engine(RuntimeOptions options, std::shared_ptr<runtime::Device> device,
               runtime::Builder::MakeCompiler make_compiler)
    : options_(completed(std::move(options))),
      store_(std::make_shared<cache::Store>(options_.store)),
      device_(std::move(device)),
      builder_(store_, std::move(make_compiler), options_.log, options_.compile_threads),
      starting_points_(store_) {}

RuntimeStatistics Engine::statistics() { return {builder_.compiled(), tuned_, store_->stats()}; }

Key Engine::key(const KernelDefinition& kernel, std::span<const std::int64_t> problem) {
  const DeviceInfo& info = device_->info();
  return runtime::record_key(kernel, problem, info, builder_.source_digest(kernel, info.target));
}

std::vector<Version> Engine::versions() {
  const codegen::CompilerIdentity id = builder_.compiler(device_->info().target.kind).identity();
  std::vector<Version> versions{
      {"kiln", KILN_VERSION, Version::Rule::ignore},
      {"compiler", id.name + " " + id.version + " " + id.build, Version::Rule::retune}};
  for (const KeyField& f : device_->info().software)
    versions.push_back({f.name, f.value, Version::Rule::ignore});
  return versions;
}

std::optional<Recall> Engine::recall(const KernelDefinition& kernel,
                                     std::span<const std::int64_t> problem) {
  const auto record = store_->find_record(key(kernel, problem));
  if (!record) return {};
  return runtime::from_json(*record, kernel, problem, device_->info(), versions());
}

TuneResult Engine::tune(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                        const TuneOptions& options, bool for_launch) {
  runtime::check(options);
  std::lock_guard lock(tuning_);
  const auto known = recall(kernel, problem);
  if (known && answers(*known, options, for_launch)) return known->result;
  const Key key = this->key(kernel, problem);
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
  context.save = [&](const TuneResult& unfinished) {
    store_->put_record(key, runtime::to_json(completed(unfinished), kernel, software));
  };
  TuneResult result =
      completed(runtime::tune(kernel, problem, device_, builder_, options, context));
  for (const Version& v : software) result.versions.push_back({v.name, v.value});
  if (result.winner().status != CandidateStatus::measured) {  // stopped too early
    if (!known) return result;
    TuneResult stays = known->result;
    stays.end = SearchEnd::stopped;
    return stays;
  }
  const nlohmann::json record = runtime::to_json(result, kernel, software);
  store_->put_record(key, record);
  starting_points_.add(key, record);
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

ReadyKernel Engine::make_ready(const KernelDefinition& kernel,
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

}  // namespace kiln::detail
