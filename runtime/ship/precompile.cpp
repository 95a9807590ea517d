#include "runtime/ship/precompile.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <unistd.h>

#include "cache/bundle.hpp"
#include "cache/signature.hpp"
#include "codegen/instance.hpp"
#include "codegen/llvm_plugin.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/occupancy.hpp"
#include "kiln/space_query.hpp"
#include "kiln/version.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/build/compile_interrupted.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/device/host/host_device.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/ship/record_library.hpp"
#include "runtime/support/parallel.hpp"
#include "runtime/support/trace.hpp"
#include "runtime/tune/best_guess.hpp"
#include "runtime/tune/deterministic.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln {

using detail::format;

namespace {

using runtime::Clock;
using runtime::seconds_since;

struct Instance {
  const KernelDefinition* kernel;
  Target target;
  Values config;
};

/// Identifies what a kernel's source is read from; its instances' wanted keys have all the rest.
Digest place_of_source(const KernelDefinition& k) {
  std::vector<std::string> include_dirs;
  for (const auto& dir : k.source.include_dirs) include_dirs.push_back(dir.string());
  return detail::KeyBuilder("place of source", 1)
      .add("file", k.source.file.string())
      .add("text", k.source.text)
      .add("include_dirs", std::span<const std::string>(include_dirs))
      .finish()
      .digest;
}

/// What is to be built, each instance once, and the records that go with it.
class Worklist {
 public:
  Worklist(runtime::Builder& builder, const runtime::RecordLibrary& library,
           const PrecompileOptions& options)
      : builder_(builder), library_(library), options_(options) {}

  /// The job must outlive the list.
  void add(const PrecompileJob& job) {
    if (job.choice) return add_choice(job);
    job.kernel.validate();
    check_targets(job, "kernel " + job.kernel.name);
    if (job.problem.size() != job.kernel.problem_fields.size())
      throw UserError(format(
          "precompile: kernel {}: a problem has {} values, but the kernel has {} problem fields",
          job.kernel.name, job.problem.size(), job.kernel.problem_fields.size()));
    for (const Values& config : job.configs)
      if (config.size() != job.kernel.space.parameters().size())
        throw UserError(format(
            "precompile: kernel {}: a config has {} values, but the kernel has {} parameters",
            job.kernel.name, config.size(), job.kernel.space.parameters().size()));
    for (const Target& target : job.targets) add(job.kernel, job.problem, job.configs, target);
  }

  /// A record, and the instance that its winner is.
  struct Shipped {
    const runtime::RecordLibrary::Entry* record;
    std::size_t winner;
  };
  std::vector<Instance> instances;
  std::vector<Shipped> records;
  std::vector<const runtime::RecordLibrary::Entry*> records_of_choices;

 private:
  static void check_targets(const PrecompileJob& job, const std::string& of) {
    if (job.targets.empty()) throw UserError(format("precompile: the job of {} has no target", of));
  }

  static DeviceInfo device_of(const Target& target) {
    DeviceInfo device;
    device.target = target;
    device.limits = limits_of(target);
    return device;
  }

  void add_choice(const PrecompileJob& job) {
    const detail::ChoiceDescription& choice = *job.choice;
    choice.validate();
    check_targets(job, "choice " + choice.name);
    if (!job.configs.empty())
      throw UserError(format("precompile: choice {} has no configs of its own", choice.name));
    if (job.problem.size() != choice.operation.problem_fields.size())
      throw UserError(format(
          "precompile: choice {}: a problem has {} values, but the choice has {} problem fields",
          choice.name, job.problem.size(), choice.operation.problem_fields.size()));
    for (const Target& target : job.targets) {
      std::string refusals;
      bool any = false;
      for (const detail::AlternativeDescription& alternative : choice.alternatives) {
        if (!alternative.kernel) continue;
        // It is tuned for the choice's bucket, and launched for the exact problem.
        const Values bucket = choice.operation.bucketed(job.problem);
        const KernelDefinition& kernel = *alternative.kernel;
        std::string why =
            alternative.supports ? alternative.supports(bucket, device_of(target)) : std::string();
        if (why.empty()) try {
            add(kernel, bucket, {}, target);
            if (!(kernel.bucketed(bucket) == kernel.bucketed(job.problem)))
              add(kernel, job.problem, {}, target);
          } catch (const UserError& error) {  // another kernel may do
            why = error.what();
          }
        any = any || why.empty();
        if (!why.empty()) refusals += format("; {}: {}", alternative.name, why);
      }
      if (!any)
        throw UserError(format("precompile: choice {} for {} has no kernel to compile for {}{}",
                               choice.name, choice.operation.describe_problem(job.problem),
                               target.arch, refusals));
      add_records(choice, job.problem, target);
    }
  }

  void add_records(const detail::ChoiceDescription& choice, const Values& problem,
                   const Target& target) {
    const auto named =
        detail::Tunable(choice.operation).named_problem(Values(choice.operation.bucketed(problem)));
    for (const auto* record : library_.find(choice.name, choice.types, named, target))
      if (has_field(record->key, "kind", "choice") &&
          !record->key.value("deterministic").empty() == deterministic_ &&
          seen_records_.insert(record->key.digest).second)
        records_of_choices.push_back(record);
  }

  void add(const KernelDefinition& asked, const Values& exact, const std::vector<Values>& configs,
           const Target& target) {
    const DeviceInfo device = device_of(target);
    const DeviceLimits& limits = device.limits;
    const bool same_bits = asked.deterministic || deterministic_;
    const KernelDefinition kernel = same_bits ? runtime::deterministic(asked, device) : asked;
    const Values problem = kernel.bucketed(exact);
    const Values base = detail::Tunable(kernel).default_config(problem, target, limits);
    if (runtime::empty(kernel.launch(base, problem, limits)))
      throw UserError(
          format("precompile: kernel {} for {}: the grid is empty, so nothing is launched",
                 kernel.name, kernel.describe_problem(problem)));
    const Digest source = place_of_source(kernel);
    std::string refusal;
    bool any = false;
    // Which instance the config is; nothing: it cannot be launched.
    const auto take = [&](Values config) -> std::optional<std::size_t> {
      const std::string why = detail::plan(kernel, config, problem, limits).obstacle(limits);
      if (!why.empty()) {
        refusal = format("{} needs {}", kernel.space.describe(config), why);
        return {};
      }
      any = true;
      const auto [seen, is_new] = seen_.try_emplace(
          {source, codegen::wanted_key(kernel, config, target).digest}, instances.size());
      if (is_new) instances.push_back({&asked, target, std::move(config)});
      return seen->second;
    };
    take(base);
    take(runtime::untuned_config(kernel, problem, device));
    const std::size_t winners = add_winners(kernel, problem, target, take);
    for (const Values& config : configs) take(config);
    const bool all = winners == 0 && configs.empty();
    std::vector<Values> listed;
    if (all && kernel.configs) listed = kernel.configs(problem, limits);
    for (Values& config : listed)
      if (!kernel.space.violated(config, problem, limits)) take(std::move(config));
    if (all && listed.empty())
      for_each_config(kernel.space, problem, limits,
                      [&](std::span<const std::int64_t> config, const Constraint* violated) {
                        if (!violated) take(Values(config.begin(), config.end()));
                        return !options_.stop.stop_requested();
                      });
    if (!any)
      throw UserError(format("precompile: kernel {} for {} cannot be launched on {}: {}",
                             kernel.name, kernel.describe_problem(problem), target.arch, refusal));
  }

  /// How many records of this source there are.
  template <class Take>
  std::size_t add_winners(const KernelDefinition& kernel, const Values& problem,
                          const Target& target, const Take& take) {
    if (library_.empty()) return 0;
    const auto source = builder_.source_digest(kernel);
    std::size_t count = 0;
    for (const auto* record : library_.find(
             kernel.name, kernel.types, detail::Tunable(kernel).named_problem(problem), target)) {
      std::string refusal = "it was made from another source";
      const bool same_bits = !record->key.value("deterministic").empty();
      if (same_bits != kernel.deterministic)
        refusal = same_bits ? "it is for deterministic use" : "it is not for deterministic use";
      else if (of_source(record->key, source))
        try {
          if (const auto winner = take(kernel.space.config(record->winner))) {
            if (seen_records_.insert(record->key.digest).second)
              records.push_back({record, *winner});
            ++count;
            continue;
          }
          refusal = "its winner cannot be launched there";
        } catch (const UserError& error) {  // the winner has left the space
          refusal = error.what();
        }
      if (options_.log)
        options_.log(LogLevel::warning, format("a record of {} for {} is left out: {}", kernel.name,
                                               kernel.describe_problem(problem), refusal));
    }
    return count;
  }

  static bool has_field(const Key& key, std::string_view name, std::string_view value) {
    return std::ranges::any_of(
        key.fields, [&](const KeyField& f) { return f.name == name && f.value == value; });
  }
  static bool of_source(const Key& key, const std::optional<Digest>& source) {
    return source && has_field(key, codegen::kKernelSourceField, to_hex(*source));
  }

  runtime::Builder& builder_;
  const runtime::RecordLibrary& library_;
  const PrecompileOptions& options_;
  const bool deterministic_ = runtime::is_deterministic(options_.deterministic);
  /// By source and wanted key: which instance.
  std::map<std::pair<Digest, Digest>, std::size_t> seen_;
  std::set<Digest> seen_records_;
};

/// Fails now, rather than after hours of compiling, if the file cannot be written.
void check_output(const std::filesystem::path& output) {
  std::error_code error;
  const auto folder = output.has_parent_path() ? output.parent_path() : ".";
  if (output.filename().empty() || std::filesystem::is_directory(output, error))
    throw UserError(
        format("'{}' is a directory, so no bundle can be written there", output.string()));
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw EnvironmentError(cache::call_failure("access", folder.string(), errno).what);
}

void check_private_key(const std::filesystem::path& pem) {
  if (pem.empty()) return;
  const auto key = cache::PrivateKey::load(pem);
  if (const auto* failure = std::get_if<cache::Failure>(&key))
    throw UserError(format("{}; {}", failure->what, failure->advice));
}

void check_compilers(runtime::Builder& builder, const std::vector<PrecompileJob>& jobs) {
  std::set<std::string> seen;
  for (const PrecompileJob& job : jobs)
    for (const Target& target : job.targets) {
      if (!seen.insert(target.arch).second) continue;
      // Both throw, one for a compiler that is missing, the other for a compiler that does not know
      // the target.
      static_cast<void>(builder.compiler(target.kind).includes(target));
    }
}

/// The host's compiler reports a failed opening only when it compiles, which is too late here.
std::shared_ptr<codegen::Compiler> make_working_compiler(Target::Kind kind,
                                                         std::optional<unsigned> processes) {
  if (kind == Target::Kind::host)
    if (const std::string obstacle = codegen::host_compiler_obstacle(); !obstacle.empty())
      throw EnvironmentError(obstacle);
  return runtime::compiler_maker(processes)(kind);
}

/// What became of an instance.
struct Made {
  Key key;
  detail::Bytes bytes;
  std::optional<CompileFailure> failure;
  double seconds = 0;  ///< 0: not begun
};

Made make(runtime::Builder& builder, const Instance& instance) {
  const auto start = Clock::now();
  runtime::Build build;
  try {
    build = builder.build(*instance.kernel, instance.config, instance.target);
  } catch (const runtime::CompileInterrupted& error) {  // the others are compiled
    build.outcome = CompileFailure{
        codegen::describe_instance(*instance.kernel, instance.config), "kiln", {}, error.what()};
  }
  Made made{std::move(build.key), std::move(build.bytes), {}, 0};
  if (auto* failure = std::get_if<CompileFailure>(&build.outcome))
    made.failure = std::move(*failure);
  else if (!build.keepable)
    made.failure = {codegen::describe_instance(*instance.kernel, instance.config),
                    "kiln",
                    {},
                    build.edited
                        ? "a file of its source was edited while it was compiled: run again"
                        : "only a compiler can tell which files it includes, so a bundle "
                          "could not say what it was made of"};
  made.seconds = seconds_since(start);
  return made;
}

}  // namespace

DeviceLimits limits_of(const Target& target) {
  if (target.kind == Target::Kind::host) return runtime::host_info().limits;
  // The largest product's number of multiprocessors, because configs are chosen by it.
  const int capability = compute_capability(target);
  return limits_of(capability, capability >= 100  ? 148
                               : capability >= 90 ? 132
                               : capability == 80 ? 108
                               : capability >= 86 ? 142
                                                  : 72);
}

PrecompileReport precompile(const std::vector<PrecompileJob>& jobs,
                            const std::filesystem::path& output, const PrecompileOptions& options) {
  return runtime::precompile(jobs, output, options,
                             [processes = options.processes](Target::Kind kind) {
                               return make_working_compiler(kind, processes);
                             });
}

PrecompileReport runtime::precompile(const std::vector<PrecompileJob>& jobs,
                                     const std::filesystem::path& output,
                                     const PrecompileOptions& options,
                                     Builder::MakeCompiler make_compiler) {
  const auto start = Clock::now();
  if (jobs.empty()) throw UserError("precompile: there is nothing to do: no job was given");
  check_output(output);
  check_private_key(options.private_key);
  StoreOptions store = options.store;
  if (!store.log) store.log = options.log;
  runtime::Builder builder(std::make_shared<cache::Store>(store), std::move(make_compiler),
                           options.log, options.threads);
  check_compilers(builder, jobs);
  const runtime::RecordLibrary library(options.records);
  Worklist list(builder, library, options);
  for (const PrecompileJob& job : jobs) list.add(job);

  PrecompileReport report;
  const std::size_t count = report.instances = list.instances.size();
  report.threads = static_cast<unsigned>(std::min<std::size_t>(builder.builds_at_once(), count));
  std::vector<Made> made(count);
  runtime::for_each_index(
      report.threads, count, options.stop,
      [&](std::size_t i) { made[i] = make(builder, list.instances[i]); },
      [&](std::size_t done) {
        if (options.progress) options.progress(done, count);
      });
  report.compiled = builder.compiled();
  cache::BundleWriter bundle;
  std::size_t whole = 0;
  std::vector<bool> binaries(count);  // whether an instance has one
  for (std::size_t i = 0; i < count; ++i) {
    Made& m = made[i];
    report.busy_seconds += m.seconds;
    report.stopped = report.stopped || m.seconds == 0;
    if (m.failure) {
      report.failures.push_back(std::move(*m.failure));
    } else if (m.seconds != 0) {
      bundle.add(EntryKind::binary, m.key, std::move(m.bytes));
      binaries[i] = true;
      ++whole;
    }
  }
  if (!report.stopped && whole != 0) {
    for (const auto& [record, winner] : list.records) {
      if (!binaries[winner]) {
        if (options.log)
          options.log(LogLevel::warning,
                      format("a record is left out, because its winner has no binary: {}",
                             codegen::describe_instance(*list.instances[winner].kernel,
                                                        list.instances[winner].config)));
        continue;
      }
      bundle.add(EntryKind::record, record->key, record->payload);
      ++report.records;
    }
    for (const auto* record : list.records_of_choices) {
      bundle.add(EntryKind::record, record->key, record->payload);
      ++report.records;
    }
    if (const auto failure = bundle.write(output, "kiln " KILN_VERSION, options.private_key))
      throw EnvironmentError(format("{}; {}", failure->what, failure->advice));
    report.bundle = bundle_info(output);
  }
  report.seconds = seconds_since(start);
  return report;
}

std::vector<PrecompileJob> jobs_for(const Manifest& manifest, const Registry& registry) {
  // A registry makes what is asked for anew each time.
  std::map<std::tuple<bool, std::string, std::vector<std::string>, std::vector<std::string>>,
           PrecompileJob>
      made;
  std::vector<PrecompileJob> jobs;
  for (const WantedInstance& wanted : manifest.wanted) try {
      std::vector<std::string> fields;
      for (const auto& [field, value] : wanted.problem) fields.push_back(field);
      const auto [place, first] =
          made.try_emplace({wanted.is_choice, wanted.kernel, wanted.types, std::move(fields)});
      if (first && wanted.is_choice)
        place->second.choice = registry.find_choice(wanted.kernel, wanted.types, wanted.problem);
      else if (first)
        place->second.kernel = registry.find(wanted.kernel, wanted.types);
      PrecompileJob job = place->second;
      job.targets = {Target::parse(wanted.target)};
      job.problem = (job.choice ? job.choice->operation : job.kernel).problem(wanted.problem);
      if (!wanted.config.empty()) job.configs = {job.kernel.space.config(wanted.config)};
      jobs.push_back(std::move(job));
    } catch (const UserError& error) {
      throw UserError(format("manifest, entry {} ({}): {}", &wanted - manifest.wanted.data(),
                             wanted.kernel, error.what()));
    }
  return jobs;
}

}  // namespace kiln
