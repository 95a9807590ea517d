#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>
#include <variant>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kiln/choice.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "kiln/recorded.hpp"
#include "kiln/roofline.hpp"
#include "tools/checks.hpp"
#include "tools/commands.hpp"
#include "tools/interrupt.hpp"
#include "tools/output.hpp"
#include "tools/problems.hpp"
#include "tools/ranks.hpp"
#include "tools/report.hpp"
#include "tools/terminal.hpp"

namespace kiln::tools {

using kiln::detail::format;
using nlohmann::json;

namespace {

struct TuneRequest {
  std::string kernel, problem, problems_file, types, device = "auto", exported, trace;
  bool roofline = false;
  TuneOptions tuning;
  double budget = 0;  ///< seconds for all problems
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

/// What is tuned: a kernel's handle or a choice.
using Handle = std::variant<DynamicTuned, DynamicChoice>;

Handle handle_of(const Runtime& runtime, const NamedProblem& job) {
  if (job.choice) return tuned(runtime, *job.choice);
  return runtime.tuned(job.kernel);
}

class Tuning {
 public:
  Tuning(Context& context, const TuneRequest& request)
      : context_(context), request_(request), single_(request.problems_file.empty()) {}

  int run() {
    if (!request_.ranks.transport.empty()) return run_with_ranks();
    prepare();
    return work();
  }

 private:
  // --- with ranks -------------------------------------------------------------------------------

  int run_with_ranks() {
    context_.answers = launched_rank(request_.ranks) == 0;
    device_ = rank_device(request_.ranks, request_.device);
    ranks_ = open_ranks(request_.ranks, device_);
    context_.answers = ranks_->rank() == 0;
    int code = kDone;
    std::string trouble;
    try {
      prepare();
    } catch (const std::exception& error) {
      code = fail(error);
      trouble = *error.what() ? error.what() : "it failed";
    }
    try {
      // An interrupted rank takes part, too: the agreement tells the others that it measures
      // nothing.
      const auto refusal =
          ranks_->begin(trouble, request_.ranks.settle_in, request_.ranks.options.first_seconds);
      if (trouble.empty()) {
        if (refusal) throw EnvironmentError(refusal->describe());
        code = work();
      }
    } catch (const std::exception& error) {
      code = fail(error);
      // Tells the ranks that wait for this one that it will not take part.
      if (!ranks_->used())
        ranks_->abort({RankFailure::Kind::aborted, {ranks_->rank()}, error.what()});
    }
    return leave(code);
  }

  /// At once: to shut the transport down this rank waits for the others.
  int fail(const std::exception& error) const {
    const Fault fault = fault_of(error);
    const int code = report(context_, fault);
    try {
      write_rank_log(fault.json());
    } catch (const EnvironmentError&) {  // there is a worse one
    }
    return code;
  }

  /// Launchers end a job when the first rank leaves with an error. So none leaves before the others
  /// have said what they know; and then not through MPI_Finalize, where it would wait for the
  /// launcher to let it go, instead of ending with its own exit code.
  int leave(int code) const {
    try {
      flush_output();
    } catch (const std::exception& error) {
      const int cut = fail(error);
      if (code == kDone) code = cut;
    }
    if (ranks_->all_well(code == kDone, request_.ranks.options.tune_seconds)) return code;
    // The communicator is broken, so no rank can be asked. Ranks that know why get time to report
    // it.
    constexpr std::chrono::seconds kGrace(1);
    if (ranks_->broken()) std::this_thread::sleep_for(kGrace);
    ::_exit(code);
  }

  // --- before tuning: what one rank can do alone ------------------------------------------------

  void prepare() {
    check_request();
    options_.device = device_.empty() ? request_.device : device_;
    options_.store = context_.store;
    options_.log = context_.log();
    options_.tuning.ranks = ranks_;
    options_.tuning.together = request_.ranks.options;
    runtime_ = std::make_unique<Runtime>(options_);
    const Registry& registry = context_.registry;
    if (recorded())
      problems_.push_back(
          {recorded_kernel(RecordedSpace(request_.device.substr(kRecorded.size()))), {}, {}, 0});
    else if (single_)
      problems_.push_back(
          named_problem(registry, request_.kernel, request_.types, request_.problem));
    else
      problems_ = read_jobs(request_.problems_file, registry, runtime_->device());
    if (together()) {
      // One handle for a kernel, so that equal problems are one.
      using Subject =
          std::tuple<bool, std::string, std::vector<std::string>, std::vector<std::string>>;
      std::map<Subject, Handle> handles;
      for (const NamedProblem& p : problems_) {
        const Subject subject{p.choice.has_value(), p.kernel.name, p.kernel.types,
                              p.kernel.problem_fields};
        auto found = handles.find(subject);
        if (found == handles.end()) found = handles.emplace(subject, handle_of(*runtime_, p)).first;
        jobs_.push_back({found->second, p.problem, p.weight});
      }
    }
    if (talks())
      std::printf("device: %s (%s, %s)\n", runtime_->device().id.c_str(),
                  runtime_->device().name.c_str(), runtime_->device().target.arch.c_str());
    if (!recorded()) find_roofline();
    write_rank_log(json::object());
  }

  /// Whether all problems are tuned in one call.
  bool together() const { return ranks_ || request_.budget > 0; }

  bool recorded() const { return request_.device.starts_with(kRecorded); }

  void check_request() const {
    if (recorded() && !(single_ && request_.kernel.empty() && request_.problem.empty()))
      throw UserError("a recorded device has one kernel and one problem: name neither");
    if (!single_ && !request_.kernel.empty())
      throw UserError("give either a kernel or --problems FILE, not both");
    if (single_ && !recorded() && request_.kernel.empty())
      throw UserError("give a kernel, or --problems FILE");
    if (single_ && !recorded())  // before a device is opened
      static_cast<void>(
          named_problem(context_.registry, request_.kernel, request_.types, request_.problem));
    for (const auto& [name, value] :
         {std::pair{"--seconds", request_.tuning.max_seconds.value_or(0)},
          std::pair{"--max-seconds", request_.budget},
          std::pair{"--target", request_.tuning.target_seconds}})
      if (!std::isfinite(value)) throw UserError(format("{}: {} is not a time", name, value));
    if (!request_.exported.empty() && (!single_ || !request_.exported.starts_with("t4:")))
      throw UserError("--export takes t4:FILE, and one problem");
    if (!request_.exported.empty()) check_writable("--export", request_.exported.substr(3));
    if (!request_.trace.empty()) check_writable("--trace", request_.trace);
  }

  void find_roofline() {
    roofline_ = known_roofline(*runtime_);
    if (roofline_ || !request_.roofline || interrupt_.signal() != 0) return;
    ProgressBar bar("roofline");
    TuneOptions options;
    options.stop = interrupt_.token();
    if (context_.answers) options.progress = [&](const TuneProgress& p) { bar.show(p); };
    // It is this device's alone, and other ranks may have theirs in the store.
    RuntimeOptions alone = options_;
    alone.tuning.ranks = nullptr;
    roofline_ = ranks_ ? roofline(Runtime(alone), options) : roofline(*runtime_, options);
  }

  // --- tuning -----------------------------------------------------------------------------------

  int work() {
    if (together()) tune_together();
    json results = json::array();
    std::size_t stored = 0, wrong = 0, failed = 0;
    for (std::size_t p = 0; p < problems_.size(); ++p) {
      if (!together() && interrupt_.signal() != 0) break;
      json result = together() ? finish(problems_[p], jobs_[p].what, together_[p]) : tune_alone(p);
      failed += result.contains("failure") ? 1 : 0;
      stored += result["from_store"].get<bool>() ? 1 : 0;
      wrong += result["launch"].value("right", true) ? 0 : 1;
      results.push_back(std::move(result));
    }
    const double wall =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const std::size_t compiled = runtime_->statistics().compiled;
    if (!request_.trace.empty() && context_.answers) write_chrome_trace(request_.trace, traced_);
    const json all = !single_ ? json{{"results", results}, {"compiled", compiled}, {"wall_s", wall}}
                     : results.empty() ? json::object()  // interrupted before it began
                                       : results[0];
    write_rank_log(all);
    if (context_.json && context_.answers)
      print_json(all);
    else if (talks()) {
      if (!single_ && !summary_.empty()) std::fputs(summary(summary_).c_str(), stdout);
      std::printf(
          "%zu problems, %zu from the store,%s %zu instances compiled, %s%s\n", results.size(),
          stored, failed == 0 ? "" : format(" {} failed,", failed).c_str(), compiled,
          show_time(wall).c_str(),
          stored == problems_.size() && compiled == 0 ? ": everything came from the store" : "");
    }
    return interrupt_.signal() != 0 ? kInterrupted
           : wrong != 0             ? kInternalError
           : disagreed_             ? kEnvironmentError
           : failed != 0            ? kIncomplete
                                    : kDone;
  }

  /// For people the output of one rank is enough.
  bool talks() const { return !context_.json && context_.answers; }

  /// Also called once before tuning, to learn early that it cannot be written.
  void write_rank_log(const json& results) const {
    if (!ranks_ || request_.ranks.logs.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(request_.ranks.logs, ignored);
    const auto file = request_.ranks.logs / format("rank-{}.json", ranks_->rank());
    const std::string text = results.dump(2, ' ', false, json::error_handler_t::replace);
    if (!(std::ofstream(file) << text << '\n' << std::flush))
      throw EnvironmentError(format("--rank-logs: {} cannot be written", file.string()));
  }

  /// All problems in one agreement of the ranks, or within one budget.
  void tune_together() {
    TuneOptions options = request_.tuning;
    if (request_.budget > 0) options.max_seconds = request_.budget;
    ProgressBar bar(ranks_ ? format("{} problems on {} ranks", jobs_.size(), ranks_->size())
                           : format("{} problems", jobs_.size()),
                    {.seconds = options.max_seconds.value_or(0)});
    if (talks())
      options.progress = [&](const TuneProgress& p) {
        bar.show(p, [&] { return subject_text(p.kernel, p.types, p.problem_fields, p.problem); });
      };
    options.stop = interrupt_.token();
    together_ = runtime_->tune(jobs_, options);
  }

  json tune_alone(std::size_t index) {
    const NamedProblem& job = problems_[index];
    const Handle handle = handle_of(*runtime_, job);
    const auto on_record = [&] {
      return std::visit([&](const auto& tuned) { return tuned.known(job.problem); }, handle);
    };
    if (const auto known = request_.tuning.retune ? std::nullopt : on_record();
        known && !known->complete && talks())
      std::printf("%s %s: continues an unfinished search of %zu candidates\n",
                  job.kernel.name.c_str(), job.kernel.describe_problem(job.problem).c_str(),
                  known->candidates.size());
    TuneResult result;
    {
      const std::string place =
          problems_.size() > 1 ? format("{} of {}: ", index + 1, problems_.size()) : "";
      ProgressBar bar(place + job.kernel.name + " " + job.kernel.describe_problem(job.problem),
                      {.seconds = request_.tuning.max_seconds.value_or(0),
                       .evaluations = request_.tuning.max_evaluations.value_or(0)});
      TuneOptions options = request_.tuning;
      options.progress = [&](const TuneProgress& p) { bar.show(p); };
      options.stop = interrupt_.token();
      result =
          std::visit([&](const auto& tuned) { return tuned.tune(job.problem, options); }, handle);
    }
    return finish(job, handle, result);
  }

  json finish(const NamedProblem& job, const Handle& handle, const TuneResult& result) {
    const bool defaults = result.agreed && result.agreed->outcome == RankReport::Outcome::defaults;
    disagreed_ = disagreed_ || defaults;
    if (talks()) {
      if (result.problem != job.problem)
        std::printf("%s %s belongs to the bucket %s:\n", job.kernel.name.c_str(),
                    job.kernel.describe_problem(job.problem).c_str(),
                    job.kernel.describe_problem(result.problem).c_str());
      std::fputs(describe(result, roof()).c_str(), stdout);
      std::fflush(stdout);
    }
    if (!request_.exported.empty() && context_.answers) write_export(result, defaults);
    json out = report_json(result, roof());
    out["asked"] = json::object();  // `problem` is the bucket that this belongs to
    for (std::size_t i = 0; i < job.problem.size(); ++i)
      out["asked"][job.kernel.problem_fields[i]] = job.problem[i];
    if (job.weight > 0) out["weight"] = job.weight;
    if (!request_.trace.empty()) traced_.push_back(result);
    out["launch"] = json::object();
    const auto* const tuned = std::get_if<DynamicTuned>(&handle);
    // A choice's candidates were verified as they are launched. If the budget is spent, what it has
    // measured was verified in the search.
    if (!tuned || request_.budget > 0 || (result.end == SearchEnd::stopped && !result.from_store)) {
      summarize(job, result);
      return out;
    }
    const Verification launch = tuned->verify(job.problem);
    summarize(job, result, &launch);
    out["launch"] = {{"right", launch.right},
                     {"max_error", launch.max_error},
                     {"norm_error", launch.norm_error},
                     {"why", launch.why}};
    if (talks())
      std::printf("  launched on fresh data: %s (error %.2g of the tolerance, %.2g of the norm)\n",
                  launch.right ? "right" : launch.why.c_str(), launch.max_error, launch.norm_error);
    return out;
  }

  /// A choice may have the name and the types of a kernel.
  void summarize(const NamedProblem& job, const TuneResult& result,
                 const Verification* launch = nullptr) {
    SummaryRow row = summary_row(result, roof(), launch);
    if (job.choice) row[0].insert(0, "choice ");
    summary_.push_back(std::move(row));
  }

  void write_export(const TuneResult& result, bool defaults) const {
    const std::string file = request_.exported.substr(3);
    if (defaults)
      say_error(format("--export: {} was not written: all ranks use the default: {}", file,
                       result.agreed->why));
    else if (interrupt_.signal() != 0 && result.count(CandidateStatus::measured) == 0)
      say_error(format("--export: {} was not written: nothing was measured", file));
    else
      write_t4(result, file);
  }

  /// The device's roofline, if it was measured or is to be.
  const Roofline* roof() const { return roofline_ ? &*roofline_ : nullptr; }

  Context& context_;
  const TuneRequest& request_;
  const bool single_;  ///< one problem, not a file of them
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::optional<Roofline> roofline_;
  const Interrupt interrupt_;
  std::string device_;  ///< of this rank
  std::shared_ptr<RankEnd> ranks_;
  RuntimeOptions options_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<NamedProblem> problems_;
  std::vector<TuneResult> traced_;
  std::vector<SummaryRow> summary_;  ///< of a file of problems
  std::vector<TuneJob> jobs_;        ///< where they are tuned in one call
  std::vector<TuneResult> together_;
  bool disagreed_ = false;
};

}  // namespace

void add_tune(CLI::App& app, Context& context) {
  auto* tune =
      app.add_subcommand("tune", "Tune, verify and launch kernels, and remember the winners");
  const auto request = std::make_shared<TuneRequest>();
  tune->add_option("kernel", request->kernel, "Its name (see `kiln list`)");
  tune->add_option("--problem", request->problem, "field=value,...");
  tune->add_option("--problems", request->problems_file, "JSON file with many problems");
  tune->add_option("--types", request->types, "Element type, e.g. bf16");
  tune->add_option("--device", request->device, "auto, host, cuda, cuda:N or recorded:FILE")
      ->capture_default_str();
  tune->add_option("--strategy", request->tuning.strategy,
                   "How to search (default: the one that wins on measured spaces)");
  tune->add_option("--evaluations", request->tuning.max_evaluations,
                   "Candidates to try, counting those of earlier runs")
      ->check(above_zero());
  auto* const seconds =
      tune->add_option("--seconds", request->tuning.max_seconds, "Time to spend on each problem")
          ->check(above_zero());
  tune->add_option("--max-seconds", request->budget,
                   "Time to spend on all problems: where most is expected to be gained")
      ->check(above_zero())
      ->excludes(seconds);
  tune->add_option("--target", request->tuning.target_seconds,
                   "End when a launch takes at most this many seconds")
      ->check(above_zero());
  tune->add_flag("!--warm-cache", request->tuning.cold_cache,
                 "Let launches find their data in the last-level cache");
  tune->add_flag("--overlap-launches", request->tuning.overlap_launches,
                 "Let programmatic launches begin before the one in front has ended");
  tune->add_flag("--roofline", request->roofline,
                 "Measure the device's roofline first if it is not known, and compare with it");
  tune->add_option("--export", request->exported, "t4:FILE: write all results in the T4 format");
  tune->add_option("--trace", request->trace, "Write a Chrome trace of where the time went");
  tune->add_option("--seed", request->tuning.seed, "Seed of data and strategies")
      ->capture_default_str();
  tune->add_flag("--retune", request->tuning.retune,
                 "Measure again even if the store has an answer");
  add_rank_options(*tune, request->ranks);
  tune->add_flag("--json", context.json, "Print JSON");
  tune->callback([&context, request] {
    context.run = [&context, request] { return Tuning(context, *request).run(); };
  });
}

}  // namespace kiln::tools
