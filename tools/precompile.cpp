#include "kiln/precompile.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "tools/commands.hpp"
#include "tools/entries.hpp"
#include "tools/interrupt.hpp"
#include "tools/output.hpp"
#include "tools/problems.hpp"
#include "tools/report.hpp"
#include "tools/terminal.hpp"

namespace kiln::tools {

using kiln::detail::format;
using nlohmann::json;

namespace {

struct PrecompileRequest {
  std::vector<std::string> kernels, problems, types, targets, records;
  std::string problems_file, manifest, output, key;
  unsigned threads = 0;
};

std::vector<Target> targets_of(const PrecompileRequest& request) {
  std::vector<Target> targets;
  for (const std::string& name : request.targets) {
    const Target target = Target::parse(name);
    if (std::find(targets.begin(), targets.end(), target) == targets.end())
      targets.push_back(target);
  }
  return targets;
}

/// The problems that the command line names, directly or in a file.
std::vector<NamedProblem> problems_of(const Registry& registry, const PrecompileRequest& request) {
  const auto& kernels = request.kernels;
  for (const std::string& kernel : kernels) static_cast<void>(registry.make(kernel));  // known?
  if (!request.problems_file.empty()) {
    if (!request.problems.empty() || !request.types.empty())
      throw UserError(
          "the entries of --problems FILE name problems and types: leave out --problem "
          "and --types");
    return read_problems(request.problems_file, registry, kernels);
  }
  if (kernels.empty()) throw UserError("--problem is of one kernel: name it (see `kiln list`)");
  std::vector<std::string> problems = request.problems;
  if (problems.empty() && registry.make(kernels[0]).problem_fields.empty()) problems.push_back("");
  if (problems.empty())
    throw UserError(format("for which problems? Give --problem {}, or --problems FILE",
                           wanted_fields(registry.make(kernels[0]))));
  if (kernels.size() > 1)
    throw UserError("--problem is of one kernel: for several give --problems FILE");
  std::vector<NamedProblem> named;
  for (const std::string& types :
       request.types.empty() ? std::vector<std::string>{""} : request.types)
    for (const std::string& problem : problems)
      named.push_back(named_problem(registry, kernels[0], types, problem));
  return named;
}

std::vector<PrecompileJob> jobs_of(const Registry& registry, const PrecompileRequest& request) {
  std::vector<PrecompileJob> jobs;
  if (!request.manifest.empty()) jobs = jobs_for(Manifest::read(request.manifest), registry);
  const bool named =
      !request.kernels.empty() || !request.problems.empty() || !request.problems_file.empty();
  if (!named) {
    if (request.manifest.empty())
      throw UserError("give a kernel and its problems, --problems FILE, or --manifest FILE");
    if (!request.targets.empty() || !request.types.empty())
      throw UserError("a manifest's entries name targets and types: leave out --arch and --types");
    if (jobs.empty()) throw UserError(format("manifest {} lists nothing", request.manifest));
    return jobs;
  }
  const std::vector<Target> targets = targets_of(request);
  if (targets.empty()) throw UserError("for which targets? Give --arch, e.g. --arch sm_90a,host");
  for (NamedProblem& problem : problems_of(registry, request)) {
    PrecompileJob job{std::move(problem.kernel), std::move(problem.problem), {}};
    job.choice = std::move(problem.choice);
    for (const Target& target : targets)
      if (problem.meant_for(target.kind)) job.targets.push_back(target);
    if (!job.targets.empty()) jobs.push_back(std::move(job));
  }
  if (jobs.empty())
    throw UserError(format("--problems: {} has nothing for these targets", request.problems_file));
  return jobs;
}

bool nothing_compiled(const PrecompileReport& report) {
  return !report.stopped && report.failures.size() == report.instances;
}

json as_json(const PrecompileReport& report) {
  json failures = json::array();
  for (const CompileFailure& f : report.failures)
    failures.push_back({{"instance", f.kernel}, {"compiler", f.compiler}, {"log", f.log}});
  return {{"instances", report.instances},
          {"compiled", report.compiled},
          {"records", report.records},
          {"failures", failures},
          {"wall_s", report.seconds},
          {"busy_s", report.busy_seconds},
          {"threads", report.threads},
          {"stopped", report.stopped},
          {"bundle", report.stopped || nothing_compiled(report) ? json() : to_json(report.bundle)}};
}

std::string as_text(const PrecompileReport& report) {
  const double offered = report.seconds * report.threads;
  std::string text =
      format("{} instances, {} compiled, {} failed; {} on {} threads, {:.0f} % busy\n",
             report.instances, report.compiled, report.failures.size(), show_time(report.seconds),
             report.threads, offered > 0 ? 100 * report.busy_seconds / offered : 0);
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < std::min(kShown, report.failures.size()); ++i) {
    const CompileFailure& f = report.failures[i];
    text += format("  failed: {}: {}\n", f.kernel, f.log.substr(0, f.log.find('\n')));
  }
  if (report.failures.size() > kShown)
    text += format("  failed: {} more (--json has all)\n", report.failures.size() - kShown);
  if (nothing_compiled(report)) return text + "nothing compiles: no bundle was written\n";
  return text + (report.stopped ? "stopped: no bundle was written\n" : describe(report.bundle));
}

int run_precompile(const Context& context, const PrecompileRequest& request) {
  const Interrupt interrupt;
  PrecompileOptions options;
  options.store = context.store;
  options.records.assign(request.records.begin(), request.records.end());
  options.private_key = request.key;
  options.threads = request.threads;
  options.log = context.log();
  options.stop = interrupt.token();
  PrecompileReport report;
  {
    ProgressBar bar(request.output);
    options.progress = [&](std::size_t done, std::size_t total) {
      bar.show("compile", done, total);
    };
    report = precompile(jobs_of(context.registry, request), request.output, options);
  }
  if (context.json)
    print_json(as_json(report));
  else
    print(as_text(report));
  return report.stopped ? kInterrupted : nothing_compiled(report) ? kUserError : kDone;
}

}  // namespace

void add_precompile(CLI::App& app, Context& context) {
  auto* precompile = app.add_subcommand(
      "precompile",
      "Compile instances into one bundle, also for targets that this machine does not have");
  const auto request = std::make_shared<PrecompileRequest>();
  const auto list = [&](const char* name, std::vector<std::string>& into, const char* help) {
    return precompile->add_option(name, into, help)->allow_extra_args(false);
  };
  precompile->add_option("kernel", request->kernels,
                         "Their names (see `kiln list`); none: all of --problems");
  list("--problem", request->problems, "field=value,...; may be repeated");
  precompile->add_option("--problems", request->problems_file,
                         "JSON file with many problems; those of the named kernels are used");
  list("--types", request->types, "Element types, e.g. f32,bf16")->delimiter(',');
  list("--arch", request->targets, "Targets, e.g. sm_80,sm_90a,sm_100a,host")->delimiter(',');
  precompile->add_option(
      "--manifest", request->manifest,
      "Manifest of what a program found missing (Runtime::wanted); alone, or in addition");
  list("--records", request->records,
       "A cache directory or bundle with tuning records: for problems with a record, only the "
       "winner and the default are compiled; may be repeated");
  precompile->add_option("-o,--output", request->output, "The bundle, replaced as a whole")
      ->required();
  precompile->add_option("--sign", request->key,
                         "PEM file of an Ed25519 private key; none: not signed");
  precompile->add_option("--threads", request->threads, "0: one per core that it may use")
      ->capture_default_str();
  precompile->add_flag("--json", context.json, "Print JSON");
  precompile->footer(
      "Needs a compiler (NVRTC, or LLVM for host), no GPU and no driver. A config that does not "
      "compile is reported and left out.");
  precompile->callback([&context, request] {
    context.run = [&context, request] { return run_precompile(context, *request); };
  });
}

}  // namespace kiln::tools
