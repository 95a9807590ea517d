#include "runtime/engine.hpp"

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "runtime/tuner.hpp"

namespace kiln::detail {

using runtime::Recall;
using runtime::Version;

namespace {

RuntimeOptions completed(RuntimeOptions options) {
  if (!options.store.log) options.store.log = options.log;
  return options;
}

/// A stored answer suffices when the search it came from is the one that is asked for.
bool answers(const Recall& recall, const TuneOptions& options, bool for_launch) {
  if (options.retune || !recall.same_space) return false;
  if (recall.result.complete || for_launch) return true;
  const std::size_t tried =
      recall.result.candidates.size() - recall.result.count(CandidateStatus::violates_constraint);
  return options.max_evaluations != 0 && tried >= options.max_evaluations;
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
      builder_(store_, std::move(make_compiler), options_.log, options_.compile_threads) {}

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
                                     std::span<const std::int64_t> problem,
                                     runtime::Detail detail) {
  const auto record = store_->find_record(key(kernel, problem));
  if (!record) return {};
  return runtime::from_json(*record, kernel, problem, device_->info(), versions(), detail);
}

TuneResult Engine::tune(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                        const TuneOptions& options, bool for_launch) {
  std::lock_guard lock(tuning_);
  const auto known = recall(kernel, problem, runtime::Detail::all);
  if (known && answers(*known, options, for_launch)) return known->result;
  const bool reuse = known && !options.retune;
  TuneResult result = runtime::tune(kernel, problem, device_, builder_, options,
                                    reuse ? &known->result : nullptr, options_.log);
  const std::vector<Version> software = versions();
  for (const Version& v : software) result.versions.push_back({v.name, v.value});
  store_->put_record(key(kernel, problem), runtime::to_json(result, kernel, software));
  ++tuned_;
  log(LogLevel::info, format("{} {}: {} ({:.3g} ms, {:.2f} times the default's speed)", kernel.name,
                             kernel.describe_problem(problem), result.describe(result.winner()),
                             result.winner().seconds * 1e3, result.speedup()));
  return result;
}

ReadyKernel Engine::make_ready(const KernelDefinition& kernel,
                               std::span<const std::int64_t> problem,
                               std::span<const std::int64_t> config) {
  const LaunchGeometry geometry = kernel.geometry(config, problem);
  const std::string impossible = runtime::geometry_problem(geometry, device_->info().limits);
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
