#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "kiln/roofline.hpp"
#include "kiln/runtime.hpp"
#include "tools/checks.hpp"
#include "tools/commands.hpp"
#include "tools/interrupt.hpp"
#include "tools/output.hpp"
#include "tools/problems.hpp"
#include "tools/report.hpp"

namespace kiln::tools {

namespace {

struct TimeRequest {
  std::string kernel, problem, config, types, device = "auto";
  TuneOptions tuning;
};

int run_time(const Context& context, const TimeRequest& request) {
  const Interrupt interrupt;
  const NamedProblem job =
      named_problem(context.registry, request.kernel, request.types, request.problem);
  RuntimeOptions options;
  options.device = request.device;
  options.store = context.store;
  options.log = context.log();
  const Runtime runtime(options);
  const Values config = job.kernel.space.parse(request.config, runtime.device().target);
  TuneOptions timing = request.tuning;
  timing.stop = interrupt.token();
  const TuneResult result = runtime.tuned(job.kernel).with_config(config).tune(job.problem, timing);
  const auto roofline = known_roofline(runtime);
  if (context.json)
    print_json(report_json(result, roofline ? &*roofline : nullptr));
  else
    kiln::tools::print(describe_timing(result, roofline ? &*roofline : nullptr));
  return interrupt.signal() != 0 ? kInterrupted : kDone;
}

}  // namespace

void add_time(CLI::App& app, Context& context) {
  auto* time = app.add_subcommand("time", "Verify and time one config of a kernel");
  const auto request = std::make_shared<TimeRequest>();
  time->add_option("kernel", request->kernel, "Its name (see `kiln list`)")->required();
  time->add_option("--problem", request->problem, "field=value,...");
  time->add_option("--config", request->config,
                   "parameter=value,...; those left out are as in the default config");
  time->add_option("--types", request->types, "Element type, e.g. bf16");
  time->add_option("--device", request->device, "auto, host, cuda or cuda:N")
      ->capture_default_str();
  time->add_option("--seconds", request->tuning.max_seconds, "The most time to spend")
      ->check(above_zero());
  time->add_flag("!--warm-cache", request->tuning.cold_cache,
                 "Let launches find their data in the last-level cache");
  time->add_flag("--overlap-launches", request->tuning.overlap_launches,
                 "Let programmatic launches begin before the one in front has ended");
  time->add_option("--seed", request->tuning.seed, "Seed of the data")->capture_default_str();
  time->add_flag("--json", context.json, "Print JSON");
  time->footer("Only the compiled binary is remembered.");
  time->callback([&context, request] {
    context.run = [&context, request] { return run_time(context, *request); };
  });
}

}  // namespace kiln::tools
