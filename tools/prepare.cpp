#include "kiln/prepare.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kiln/choice.hpp"
#include "kiln/detail/format.hpp"
#include "tools/checks.hpp"
#include "tools/commands.hpp"
#include "tools/interrupt.hpp"
#include "tools/output.hpp"
#include "tools/report.hpp"
#include "tools/terminal.hpp"

namespace kiln::tools {

using kiln::detail::format;

namespace {

struct PrepareRequest {
  std::string manifest, device = "auto";
  PrepareOptions options;
  bool require_complete = false;
};

/// What the manifest names, of the registry. What that does not have is missing in the report.
struct Handles {
  std::vector<DynamicTuned> kernels;
  std::vector<DynamicChoice> choices;
};
Handles handles_for(const Manifest& manifest, const Registry& registry, const Runtime& runtime) {
  Handles handles;
  const auto named = [&](bool is_choice, const auto& made) {
    return std::ranges::any_of(manifest.wanted, [&](const WantedInstance& wanted) {
      return wanted.is_choice == is_choice && wanted.kernel == made.name &&
             wanted.types == made.types;
    });
  };
  for (const RegisteredKernel& family : registry.kernels())
    for (const std::string& label : family.types)
      if (const auto kernel = family.make(label); named(false, kernel))
        handles.kernels.push_back(runtime.tuned(kernel));
  for (const RegisteredChoice& family : registry.choices())
    for (const std::string& label : family.types)
      if (auto choice = family.make(label); named(true, choice))
        handles.choices.push_back(tuned(runtime, std::move(choice)));
  return handles;
}

std::string as_text(const PrepareReport& report) {
  std::string text;
  for (const PreparedProblem& p : report.problems) {
    std::string problem, types;
    for (const auto& [field, value] : p.problem)
      problem += format("{}{}={}", problem.empty() ? "" : ",", field, value);
    for (const std::string& type : p.types) types += (types.empty() ? "" : ", ") + type;
    text += format("{}<{}> {}: {}{}{}\n", p.kernel, types, problem, to_string(p.state),
                   p.alternative.empty() ? "" : ", " + p.alternative,
                   p.why.empty() ? "" : ": " + p.why.substr(0, p.why.find('\n')));
  }
  return text + format("{} of {} problems ready, {} compiled, {} tuned, {}{}\n", report.ready(),
                       report.problems.size(), report.compiled, report.searched,
                       show_time(report.seconds),
                       report.stopped       ? ": stopped"
                       : report.complete()  ? ": complete"
                       : report.out_of_time ? ": incomplete, the time was used up"
                                            : ": incomplete");
}

int run_prepare(const Context& context, const PrepareRequest& request) {
  const Interrupt interrupt;
  const Manifest manifest = Manifest::read(request.manifest);
  RuntimeOptions options;
  options.device = request.device;
  options.store = context.store;
  options.log = context.log();
  const Runtime runtime(options);
  const auto handles = handles_for(manifest, context.registry, runtime);
  PrepareOptions how = request.options;
  how.stop = interrupt.token();
  PrepareReport report;
  {
    ProgressBar bar(request.manifest);
    how.progress = [&](const PrepareProgress& p) { bar.show(to_string(p.step), p.done, p.total); };
    report = runtime.prepare(manifest, how);
  }
  if (context.json)
    print_json(nlohmann::json::parse(to_json(report)));
  else
    print(as_text(report));
  if (interrupt.signal() != 0) return kInterrupted;
  if (const StoreStatistics store = runtime.statistics().store; store.failed_writes > 0)
    throw EnvironmentError(format("{} of what was made are not kept{}{}", store.failed_writes,
                                  store.reason.empty() ? "" : ": ", store.reason));
  return request.require_complete && !report.complete() ? kIncomplete : kDone;
}

}  // namespace

void add_prepare(CLI::App& app, Context& context) {
  auto* prepare = app.add_subcommand(
      "prepare", "Fill the store with what a manifest asks for: compile, load and tune it here");
  const auto request = std::make_shared<PrepareRequest>();
  prepare
      ->add_option("--manifest", request->manifest,
                   "What a program wanted (Runtime::wanted), or a list of problems in that form")
      ->required();
  prepare->add_option("--device", request->device, "auto, host, cuda or cuda:N")
      ->capture_default_str();
  std::map<std::string, PrepareWork> works;
  for (const PrepareWork work : {PrepareWork::tune, PrepareWork::compile, PrepareWork::look_up})
    works[to_string(work)] = work;
  prepare
      ->add_option("--work", request->options.work,
                   "tune what has no record; or only compile; or only look up what is there")
      ->transform(one_of(works))
      ->default_str("tune");
  prepare->add_option("--max-seconds", request->options.max_seconds, "Time to spend on all of it")
      ->check(above_zero());
  prepare->add_flag("--require-complete", request->require_complete,
                    "Exit with 4 unless every problem is as asked for");
  prepare->add_flag("--json", context.json, "Print JSON");
  prepare->footer(
      "The kernels and choices are those of the registry (see `kiln list`). What is done is kept: "
      "another call "
      "goes on where this one ended.");
  prepare->callback([&context, request] {
    context.run = [&context, request] { return run_prepare(context, *request); };
  });
}

}  // namespace kiln::tools
