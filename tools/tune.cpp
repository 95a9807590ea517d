#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "kiln/recorded.hpp"
#include "kiln/roofline.hpp"
#include "tools/commands.hpp"
#include "tools/interrupt.hpp"
#include "tools/problems.hpp"
#include "tools/ranks.hpp"
#include "tools/report.hpp"
#include "tools/terminal.hpp"

namespace kiln::tools {

using kiln::detail::format;
using nlohmann::json;

namespace {

struct Request {
  std::string kernel, problem, problems_file, types, device = "auto", exported, trace;
  bool roofline = false;
  TuneOptions tuning;
  RankRequest ranks;
};

constexpr std::string_view kRecorded = "recorded:";

/// Those of the file that are meant for this device.
std::vector<NamedProblem> read_jobs(const std::string& file, const Registry& registry,
                                    const DeviceInfo& device) {
  std::vector<NamedProblem> jobs = read_problems(file, registry);
  std::erase_if(jobs, [&](const NamedProblem& p) { return !p.meant_for(device.target.kind); });
  if (jobs.empty()) throw UserError(format("--problems: {} has nothing for this device", file));
  return jobs;
}

class Tuning {
 public:
  Tuning(Context& context, const Request& request) : context_(context), request_(request) {
    RuntimeOptions options;
    options.device = rank_device(request.ranks, request.device);
    options.store = context.store;
    options.log = context.log();
    options.tuning.ranks = ranks_ = open_ranks(request.ranks, options.device);
    options.tuning.together = request.ranks.options;
    runtime_ = std::make_unique<Runtime>(options);
  }

  int run() {
    const auto start = std::chrono::steady_clock::now();
    const bool recorded = request_.device.starts_with(kRecorded);
    const bool single = request_.problems_file.empty();
    if (recorded && !(single && request_.kernel.empty() && request_.problem.empty()))
      throw UserError("a recorded device has one kernel and one problem: name neither");
    if (!single && !request_.kernel.empty())
      throw UserError("give either a kernel or --problems FILE, not both");
    if (single && !recorded && request_.kernel.empty())
      throw UserError("give a kernel, or --problems FILE");
    if (single && !recorded && request_.problem.empty()) {
      const KernelDefinition kernel = context_.registry.make(request_.kernel, request_.types);
      throw UserError("--problem is missing; kernel " + kernel.name + " wants " +
                      wanted_fields(kernel));
    }
    for (const auto& [name, value] : {std::pair{"--seconds", request_.tuning.max_seconds},
                                      std::pair{"--target", request_.tuning.target_seconds}})
      if (!std::isfinite(value)) throw UserError(format("{}: {} is not a time", name, value));
    if (!request_.exported.empty() && (!single || !request_.exported.starts_with("t4:")))
      throw UserError("--export takes t4:FILE, and one problem");
    const Registry& registry = context_.registry;
    std::vector<NamedProblem> jobs;
    if (recorded)
      jobs.push_back(
          {recorded_kernel(RecordedSpace(request_.device.substr(kRecorded.size()))), {}, {}});
    else if (single)
      jobs.push_back(named_problem(registry, request_.kernel, request_.types, request_.problem));
    else
      jobs = read_jobs(request_.problems_file, registry, runtime_->device());
    if (talks())
      std::printf("device: %s (%s, %s)\n", runtime_->device().id.c_str(),
                  runtime_->device().name.c_str(), runtime_->device().target.arch.c_str());

    if (!recorded) roofline_ = known_roofline(*runtime_);
    if (!recorded && !roofline_ && request_.roofline && interrupt_.signal() == 0) {
      ProgressBar bar("roofline");
      TuneOptions options;
      options.stop = interrupt_.token();
      options.progress = [&](const TuneProgress& p) { bar.show(p); };
      roofline_ = roofline(*runtime_, options);
    }
    json results = json::array();
    std::size_t stored = 0, wrong = 0;
    write_rank_log(json::object());
    if (ranks_ && interrupt_.signal() == 0) tune_together(jobs);
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      if (interrupt_.signal() != 0) break;
      json result = tune(jobs[j], j < together_.size() ? &together_[j] : nullptr);
      stored += result["from_store"].get<bool>() ? 1 : 0;
      wrong += result["launch"].value("right", true) ? 0 : 1;
      results.push_back(std::move(result));
    }
    const double wall =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::size_t compiled = runtime_->statistics().compiled;
    if (!request_.trace.empty()) write_chrome_trace(request_.trace, traced_);
    const json all = !single ? json{{"results", results}, {"compiled", compiled}, {"wall_s", wall}}
                     : results.empty() ? json::object()  // interrupted before it began
                                       : results[0];
    write_rank_log(all);
    if (context_.json)
      std::puts(all.dump(2).c_str());
    else if (talks())
      std::printf("%zu problems, %zu from the store, %zu instances compiled, %s%s\n",
                  results.size(), stored, compiled, show_time(wall).c_str(),
                  stored == jobs.size() && compiled == 0 ? ": everything came from the store" : "");
    const int code = interrupt_.signal() != 0 ? kInterrupted
                     : wrong != 0             ? kInternalError
                     : disagreed_             ? kEnvironmentError
                                              : kDone;
    // A broken MPI job cannot be shut down in good order.
    if (broken_) {
      std::fflush(stdout);
      ::_exit(code);
    }
    return code;
  }

 private:
  /// Of several ranks one is enough for people.
  bool talks() const { return !context_.json && (!ranks_ || ranks_->rank() == 0); }

  /// Once before tuning, too: that it cannot be written is better known early.
  void write_rank_log(const json& results) const {
    if (!ranks_ || request_.ranks.logs.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(request_.ranks.logs, ignored);
    const auto file = request_.ranks.logs / format("rank-{}.json", ranks_->rank());
    if (!(std::ofstream(file) << results.dump(2) << '\n' << std::flush))
      throw EnvironmentError(format("--rank-logs: {} cannot be written", file.string()));
  }

  /// All problems in one agreement.
  void tune_together(const std::vector<NamedProblem>& jobs) {
    for (const NamedProblem& job : jobs)
      jobs_.push_back({runtime_->tuned(job.kernel), job.problem});
    TuneOptions options = request_.tuning;
    ProgressBar bar(format("{} problems on {} ranks", jobs.size(), ranks_->size()));
    if (talks()) options.progress = [&](const TuneProgress& p) { bar.show(p); };
    options.stop = interrupt_.token();
    together_ = runtime_->tune(jobs_, options);
  }

  TuneResult tune(const NamedProblem& job, const DynamicTuned& tuned) {
    ProgressBar bar(job.kernel.name + " " + job.kernel.describe_problem(job.problem));
    TuneOptions options = request_.tuning;
    options.progress = [&](const TuneProgress& p) { bar.show(p); };
    options.stop = interrupt_.token();
    return tuned.tune(job.problem, options);
  }

  json tune(const NamedProblem& job, const TuneResult* known) {
    const auto& [kernel, problem, devices] = job;
    const DynamicTuned tuned =
        known ? jobs_[static_cast<std::size_t>(known - together_.data())].kernel
              : runtime_->tuned(kernel);
    const TuneResult result = known ? *known : tune(job, tuned);
    if (result.agreed) {
      disagreed_ = disagreed_ || result.agreed->outcome == RankReport::Outcome::defaults;
      broken_ = broken_ || result.agreed->broken;
    }
    if (talks()) {
      std::fputs(describe(result, roof()).c_str(), stdout);
      std::fflush(stdout);
    }
    if (!request_.exported.empty()) write_t4(result, request_.exported.substr(3));
    json out = to_json(result, roof());
    if (!request_.trace.empty()) traced_.push_back(result);
    out["launch"] = json::object();
    if (result.end == SearchEnd::stopped && !result.from_store) return out;
    const Verification launch = tuned.verify(problem);
    out["launch"] = {{"right", launch.right}, {"max_error", launch.max_error}, {"why", launch.why}};
    if (talks())
      std::printf("  launched on fresh data: %s (error %.2g of the tolerance)\n",
                  launch.right ? "right" : launch.why.c_str(), launch.max_error);
    return out;
  }

  /// The device's, if it was measured, or is to be.
  const Roofline* roof() const { return roofline_ ? &*roofline_ : nullptr; }

  Context& context_;
  const Request& request_;
  std::optional<Roofline> roofline_;
  const Interrupt interrupt_;
  std::shared_ptr<Communicator> ranks_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<TuneResult> traced_;
  std::vector<TuneJob> jobs_;  ///< with ranks
  std::vector<TuneResult> together_;
  bool disagreed_ = false, broken_ = false;
};

}  // namespace

void add_tune(CLI::App& app, Context& context) {
  auto* tune =
      app.add_subcommand("tune", "Tune, verify and launch kernels, and remember the winners");
  const auto request = std::make_shared<Request>();
  tune->add_option("kernel", request->kernel, "Its name (see `kiln list`)");
  tune->add_option("--problem", request->problem, "field=value,...");
  tune->add_option("--problems", request->problems_file, "JSON file with many of them");
  tune->add_option("--types", request->types, "Element type, e.g. bf16");
  tune->add_option("--device", request->device, "auto, host, cuda, cuda:N or recorded:FILE")
      ->capture_default_str();
  tune->add_option("--strategy", request->tuning.strategy,
                   "How to search (default: the one that wins on measured spaces)");
  tune->add_option("--evaluations", request->tuning.max_evaluations,
                   "Candidates to try, those of earlier runs included")
      ->check(CLI::PositiveNumber);
  tune->add_option("--seconds", request->tuning.max_seconds, "Time to spend")
      ->check(CLI::PositiveNumber);
  tune->add_option("--target", request->tuning.target_seconds,
                   "Seconds per launch that are good enough")
      ->check(CLI::PositiveNumber);
  tune->add_flag("!--warm-cache", request->tuning.cold_cache,
                 "Let launches find their data in the last-level cache");
  tune->add_flag("--roofline", request->roofline,
                 "Measure the device's roofline first, if it is not known, to compare with");
  tune->add_option("--export", request->exported, "t4:FILE: write all results in the T4 format");
  tune->add_option("--trace", request->trace, "Write a Chrome trace of where the time went");
  tune->add_option("--seed", request->tuning.seed, "Of data and strategies")->capture_default_str();
  tune->add_flag("--retune", request->tuning.retune,
                 "Measure again even if the store has an answer");
  add_rank_options(*tune, request->ranks);
  tune->add_flag("--json", context.json, "Print JSON");
  tune->callback([&context, request] {
    context.run = [&context, request] { return Tuning(context, *request).run(); };
  });
}

}  // namespace kiln::tools
