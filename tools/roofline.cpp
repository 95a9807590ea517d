#include "kiln/roofline.hpp"

#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "tools/commands.hpp"
#include "tools/interrupt.hpp"
#include "tools/report.hpp"
#include "tools/terminal.hpp"

namespace kiln::tools {

namespace {

struct RooflineRequest {
  std::string device = "auto";
  bool retune = false;
};

int run_roofline(const Context& context, const RooflineRequest& request) {
  const Interrupt interrupt;
  RuntimeOptions options;
  options.device = request.device;
  options.store = context.store;
  options.log = context.log();
  const Runtime runtime(options);
  Roofline roof;
  {
    ProgressBar bar("roofline of " + runtime.device().name);
    TuneOptions tuning;
    tuning.retune = request.retune;
    tuning.stop = interrupt.token();
    tuning.progress = [&](const TuneProgress& p) { bar.show(p); };
    roof = roofline(runtime, tuning);
  }
  if (interrupt.signal() != 0 && (roof.bytes_per_second == 0 || roof.flops_per_second == 0))
    return kInterrupted;
  if (context.json) {
    std::puts(to_json(roof).dump(2).c_str());
  } else {
    std::printf("%s (%s)%s\n", runtime.device().id.c_str(), roof.device.c_str(),
                roof.from_store ? ", from the store" : "");
    std::printf("  copy          %s, read and written\n",
                show_rate(roof.bytes_per_second, "B/s").c_str());
    std::printf("  float FMA     %s\n", show_rate(roof.flops_per_second, "FLOP/s").c_str());
    if (roof.tensor_flops_per_second > 0)
      std::printf("  bfloat16 MMA  %s (mma.sync)\n",
                  show_rate(roof.tensor_flops_per_second, "FLOP/s").c_str());
    std::printf("  a float kernel of more than %.3g operations per byte is bound by compute\n",
                roof.ridge());
  }
  return interrupt.signal() != 0 ? kInterrupted : kDone;
}

}  // namespace

void add_roofline(CLI::App& app, Context& context) {
  auto* roofline = app.add_subcommand(
      "roofline", "Measure (once) how fast the device copies and computes at best");
  const auto request = std::make_shared<RooflineRequest>();
  roofline->add_option("--device", request->device, "auto, host, cuda or cuda:N")
      ->capture_default_str();
  roofline->add_flag("--retune", request->retune, "Measure again even if the store has an answer");
  roofline->add_flag("--json", context.json, "Print JSON");
  roofline->callback([&context, request] {
    context.run = [&context, request] { return run_roofline(context, *request); };
  });
}

}  // namespace kiln::tools
