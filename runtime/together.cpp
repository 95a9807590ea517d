#include "runtime/together.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <stop_token>
#include <utility>

#include <nlohmann/json.hpp>

#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"
#include "runtime/candidate_list.hpp"
#include "runtime/engine.hpp"
#include "runtime/parallel.hpp"
#include "runtime/ranks/drive.hpp"
#include "runtime/tuner.hpp"

namespace kiln {

const char* to_string(RankReport::Outcome outcome) noexcept {
  switch (outcome) {
    case RankReport::Outcome::plan:
      return "plan";
    case RankReport::Outcome::defaults:
      return "defaults";
    default:
      return "own";
  }
}

namespace detail {

namespace {

using runtime::CandidateList;
using runtime::Recall;
using runtime::Request;
using runtime::Subject;
using runtime::Trials;
using runtime::ranks::Decision;
using runtime::ranks::Identity;
using runtime::ranks::Work;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// Candidates of one compile thread of one rank for which an estimate of their costs pays.
constexpr std::size_t kShareToMeasure = 16;

/// What is told before anything else: the winners that this rank would use, if it has all of them.
struct HeldMessage {
  std::uint64_t has_all = 0;
  Digest winners{};
};

std::string text_of(std::span<const std::int64_t> values) {
  std::string text;
  for (const std::int64_t value : values) text += std::to_string(value) + ",";
  return text;
}

std::string text_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += std::to_string(word.size()) + ":" + word;
  return text;
}

}  // namespace

/// One agreement: on what, from what, and what this rank saw meanwhile.
class TogetherRun {
 public:
  TogetherRun(Engine& engine, std::span<const Subject> subjects, const TuneOptions& options,
              Trials& trials, Communicator& communicator, bool for_launch)
      : engine_(engine),
        subjects_(subjects),
        options_(options),
        trials_(trials),
        communicator_(communicator),
        for_launch_(for_launch),
        may_measure_(engine.may_compile() &&
                     (!for_launch || engine.options().mode == Mode::tune_now)),
        known_(subjects.size()),
        lists_(subjects.size()),
        records_(subjects.size()),
        seen_(subjects.size()) {}

  std::vector<TuneResult> run() {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t s = 0; s < subjects_.size(); ++s) recall(s);
    Decision decision;
    bool same_winners = false;
    if (auto failure = ask_who_has_it(same_winners)) {
      communicator_.abort(*failure);
      decision.why = std::move(*failure);
      decision.broken = true;
      warn("uses default configs: " + decision.why.describe());
      for (std::size_t s = 0; s < subjects_.size(); ++s) list_default(s);
    } else {
      for (std::size_t s = 0; s < subjects_.size(); ++s) list(s, same_winners);
      decision = agree();
    }
    std::vector<TuneResult> results;
    for (std::size_t s = 0; s < subjects_.size(); ++s) {
      TuneResult result = same_winners && decision.kind != Decision::Kind::defaults
                              ? known_[s]->result
                              : compose(s, decision);
      result.wall_seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      results.push_back(std::move(result));
    }
    const RankReport report = this->report(decision, results);
    for (TuneResult& result : results) result.agreed = report;
    return results;
  }

 private:
  const KernelDefinition& kernel(std::size_t s) const { return *subjects_[s].kernel; }
  const Values& default_config(std::size_t s) const {
    return kernel(s).space.default_config(engine_.device()->info().target.kind);
  }

  // --- what this rank has -----------------------------------------------------------------------

  void recall(std::size_t s) {
    auto known = engine_.recall(kernel(s), subjects_[s].problem);
    const bool enough = known && (!may_measure_ || runtime::answers(*known, options_, for_launch_));
    if (!enough) return;
    const std::string why = trials_.ready(s, known->result.winner().config);
    if (why.empty())
      known_[s] = std::move(known);
    else
      warn(format("{} {}: the winner on record cannot be used: {}", kernel(s).name,
                  kernel(s).describe_problem(subjects_[s].problem), why));
  }

  /// Ranks that hold the same winners need no list of candidates that has them: records may come
  /// from a search that went further than the list.
  Communicator::Failure ask_who_has_it(bool& same_winners) {
    HeldMessage mine{1, {}};
    std::string text;
    for (std::size_t s = 0; s < subjects_.size(); ++s) {
      mine.has_all = mine.has_all && known_[s];
      if (known_[s]) text += line_of(s, known_[s]->result);
    }
    mine.winners = sha256(text);
    const std::vector<std::byte> bytes = runtime::ranks::encode(mine);
    std::vector<std::byte> all(bytes.size() * static_cast<std::size_t>(communicator_.size()));
    if (auto failure =
            communicator_.gather(bytes, all, deadline_in(options_.together.first_seconds)))
      return failure;
    same_winners = true;
    for (std::size_t r = 0; r * sizeof(HeldMessage) < all.size(); ++r) {
      const auto theirs = runtime::ranks::decode<HeldMessage>(all, r);
      if (theirs.has_all != 1 || theirs.winners != mine.winners) same_winners = false;
      if (theirs.has_all != 1) lacking_ += (lacking_.empty() ? "" : ", ") + std::to_string(r);
    }
    return {};
  }

  // --- what is asked of all ---------------------------------------------------------------------

  void list_default(std::size_t s) { lists_[s].configs = {default_config(s)}; }

  void list(std::size_t s, bool same_winners) {
    if (same_winners) {
      list_default(s);
      const Values& winner = known_[s]->result.winner().config;
      if (winner != default_config(s)) lists_[s].configs.push_back(winner);
      // Of times, not all ranks need have the same.
      const std::size_t count = lists_[s].configs.size();
      records_[s] = {runtime::ranks::Times(count, 1.0F), count - 1};
    } else if (may_measure_) {
      lists_[s] = runtime::candidate_list(kernel(s), subjects_[s].problem, engine_.device()->info(),
                                          options_.max_evaluations, options_.seed);
      if (known_[s]) records_[s] = record_of(s, known_[s]->result);
    } else {
      list_default(s);
    }
  }

  /// In the terms of the list; nothing if its winner is not there.
  std::optional<runtime::ranks::Record> record_of(std::size_t s, const TuneResult& result) const {
    const std::vector<Values>& configs = lists_[s].configs;
    std::map<Values, float> times;
    for (const Candidate& c : result.candidates)
      if (c.status == CandidateStatus::measured) times[c.config] = static_cast<float>(c.seconds);
    runtime::ranks::Record record{runtime::ranks::Times(configs.size(), kInfinity), configs.size()};
    for (std::size_t i = 0; i < configs.size(); ++i) {
      const auto found = times.find(configs[i]);
      if (found != times.end()) record.times[i] = runtime::ranks::sanitized(found->second);
      if (configs[i] == result.winner().config) record.winner = i;
    }
    if (record.answers(configs.size())) return record;
    return {};
  }

  Identity identity() const {
    const DeviceInfo& device = engine_.device()->info();
    std::string kernels, candidates, problems, build = KILN_VERSION, model = device.name;
    for (std::size_t s = 0; s < subjects_.size(); ++s) {
      const KernelDefinition& k = kernel(s);
      const auto source = engine_.builder().kernel_source(k);
      kernels += text_of({k.name, k.entry, k.config_type, text_of(k.types), text_of(k.arguments),
                          text_of(k.source.options), source ? to_hex(*source) : "no source"});
      problems += text_of(k.problem_fields) + text_of(subjects_[s].problem) + ";";
      for (const Parameter& p : k.space.parameters()) candidates += p.name + ",";
      for (const Values& config : lists_[s].configs) candidates += text_of(config) + ";";
    }
    for (const runtime::Version& v : engine_.versions())
      if (v.rule == runtime::Version::Rule::retune) build += text_of({v.name, v.value});
    for (const KeyField& f : device.fingerprint) model += text_of({f.name, f.value});
    using runtime::ranks::short_digest;
    return {short_digest(kernels),  short_digest(candidates),
            short_digest(problems), short_digest(device.target.arch),
            short_digest(build),    short_digest(model)};
  }

  Decision agree() {
    runtime::ranks::AgreementInput input;
    input.options = options_.together;
    input.identity = identity();
    input.compile_threads = static_cast<int>(std::max(1U, engine_.builder().threads()));
    input.overlap = !engine_.device()->shares_cpu();
    if (may_measure_) input.store = engine_.store()->identity().value_or(0);
    const auto size = static_cast<std::size_t>(communicator_.size());
    const bool sharded = options_.together.strategy == RankStrategy::shard && size > 1;
    for (std::size_t s = 0; s < subjects_.size(); ++s) {
      runtime::ranks::ProblemInput problem{lists_[s].configs.size(), records_[s], {}};
      // What candidates cost is found by measuring the default: worth it for a large share.
      if (sharded && !records_[s] &&
          lists_[s].configs.size() >=
              kShareToMeasure * size * static_cast<std::size_t>(input.compile_threads))
        for (const Trials::Cost& cost : trials_.costs(s, lists_[s].configs))
          problem.costs.push_back(
              {static_cast<float>(cost.compile_seconds), static_cast<float>(cost.run_seconds)});
      input.problems.push_back(std::move(problem));
    }
    runtime::ranks::Tasks tasks;
    tasks.work = [this](const Work& work, Deadline deadline) { return perform(work, deadline); };
    tasks.save = [this](std::span<const std::size_t> problems, const runtime::ranks::Plan& plan) {
      for (const std::size_t s : problems) save(s, plan);
    };
    tasks.log = engine_.options().log;
    return runtime::ranks::agree(communicator_, std::move(input), tasks);
  }

  // --- this rank's part -------------------------------------------------------------------------

  runtime::ranks::Worked perform(const Work& work, Deadline deadline) {
    runtime::ranks::Worked done;
    if (!may_measure_ || work.kind == Work::Kind::build) {
      for (const auto& [s, candidates] : work.items)
        done.times.push_back(try_to_launch(s, candidates, deadline));
      return done;
    }
    if (work.kind == Work::Kind::together) {
      const auto& [s, candidates] = work.items.front();
      const std::size_t c = candidates.front();
      keep(s, c, trials_.measure_in_step(s, lists_[s].configs[c], deadline));
      done.times = {{time_of(s, c)}};
      return done;
    }
    std::vector<Request> requests;
    for (const auto& [s, candidates] : work.items) {
      Request& request = requests.emplace_back();
      request.subject = s;
      for (const std::size_t c : candidates) request.configs.push_back(lists_[s].configs[c]);
      request.decides = rounds_ > 0 || options_.together.strategy != RankStrategy::shard ||
                        options_.together.finalists == 0;
    }
    ++rounds_;
    std::vector<std::vector<Candidate>> measured = trials_.measure(requests, deadline);
    for (std::size_t i = 0; i < work.items.size(); ++i) {
      const auto& [s, candidates] = work.items[i];
      runtime::ranks::Times& times = done.times.emplace_back();
      for (std::size_t k = 0; k < candidates.size(); ++k) {
        keep(s, candidates[k], std::move(measured[i][k]));
        times.push_back(time_of(s, candidates[k]));
      }
    }
    return done;
  }

  /// 1 for what could be launched. Nothing is begun after the deadline.
  runtime::ranks::Times try_to_launch(std::size_t s, const std::vector<std::size_t>& candidates,
                                      Deadline deadline) {
    constexpr const char* kLate = "it was not built in time";
    std::vector<std::string> whys(candidates.size(), kLate);
    std::stop_source late;
    const auto look = [&](std::size_t) {
      if (std::chrono::steady_clock::now() >= deadline) late.request_stop();
    };
    const auto threads = static_cast<unsigned>(
        std::clamp<std::size_t>(candidates.size(), 1, std::max(1U, engine_.builder().threads())));
    runtime::for_each_index(
        threads, candidates.size(), late.get_token(),
        [&](std::size_t i) { whys[i] = trials_.ready(s, lists_[s].configs[candidates[i]]); }, look);
    runtime::ranks::Times times;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      times.push_back(whys[i].empty() ? 1 : kInfinity);
      if (whys[i].empty()) continue;
      Candidate& candidate = seen_[s][candidates[i]];
      candidate.config = lists_[s].configs[candidates[i]];
      candidate.status =
          whys[i] == kLate ? CandidateStatus::not_tried : CandidateStatus::compile_failed;
      candidate.reason = whys[i];
      log(LogLevel::info, format("{} with {}: {}", kernel(s).name,
                                 kernel(s).space.describe(candidate.config), whys[i]));
    }
    return times;
  }

  void keep(std::size_t s, std::size_t c, Candidate candidate) {
    seen_[s].insert_or_assign(c, std::move(candidate));
  }

  float time_of(std::size_t s, std::size_t c) const {
    const Candidate& candidate = seen_[s].at(c);
    return candidate.status == CandidateStatus::measured ? static_cast<float>(candidate.seconds)
                                                         : kInfinity;
  }

  // --- what came of it --------------------------------------------------------------------------

  /// A result with this rank's own candidates, at the times that ranks agreed on.
  TuneResult result_of(std::size_t s, const runtime::ranks::Record& agreed) const {
    const KernelDefinition& k = kernel(s);
    TuneResult result;
    result.kernel = k.name;
    result.types = k.types;
    result.problem_fields = k.problem_fields;
    result.problem = subjects_[s].problem;
    result.device = engine_.device()->info().id;
    for (const Parameter& p : k.space.parameters()) result.parameters.push_back(p.name);
    result.space = lists_[s].space;
    if (k.flops) result.flops = k.flops(result.problem);
    if (k.bytes) result.bytes = k.bytes(result.problem);
    result.strategy = to_string(options_.together.strategy);
    result.winner_index = agreed.winner;
    result.complete = true;
    trials_.annotate(s, result);
    for (std::size_t c = 0; c < lists_[s].configs.size(); ++c) {
      Candidate candidate;
      if (const auto found = seen_[s].find(c); found != seen_[s].end()) candidate = found->second;
      candidate.config = lists_[s].configs[c];
      if (std::isfinite(agreed.times[c])) {
        if (candidate.samples.empty()) candidate.samples = {agreed.times[c]};
        candidate.status = CandidateStatus::measured;
        candidate.seconds = agreed.times[c];
        candidate.reason.clear();
      } else if (candidate.status == CandidateStatus::measured) {
        candidate.status = CandidateStatus::not_tried;
        candidate.reason = "not every rank could use it";
      } else if (candidate.reason.empty()) {
        candidate.reason = "failed on another rank, or was not come to";
      }
      result.candidates.push_back(std::move(candidate));
    }
    for (const runtime::Version& v : engine_.versions())
      result.versions.push_back({v.name, v.value});
    return result;
  }

  TuneResult compose(std::size_t s, const Decision& decision) const {
    if (decision.kind != Decision::Kind::defaults) {
      const runtime::ranks::Record& agreed = decision.plan.records[s];
      if (records_[s] && *records_[s] == agreed) {
        TuneResult result = known_[s]->result;
        result.from_store = true;
        return result;
      }
      return result_of(s, agreed);
    }
    TuneResult result =
        result_of(s, {runtime::ranks::Times(lists_[s].configs.size(), kInfinity), 0});
    result.complete = false;
    result.end = SearchEnd::stopped;
    return result;
  }

  void save(std::size_t s, const runtime::ranks::Plan& plan) {
    if (!may_measure_) return;
    TuneResult result = result_of(s, plan.records[s]);
    if (known_[s]) runtime::add_missing(result, known_[s]->result);
    engine_.remember(kernel(s), result);
  }

  /// Of what is launched from now on, so that the same plan has the same digest tomorrow, too.
  Digest winners_digest(std::span<const TuneResult> results) const {
    std::string text;
    for (std::size_t s = 0; s < results.size(); ++s) text += line_of(s, results[s]);
    return sha256(text);
  }

  std::string line_of(std::size_t s, const TuneResult& result) const {
    return format("{} {} {} {};", text_of({kernel(s).name}), text_of(kernel(s).types),
                  text_of(subjects_[s].problem), text_of(result.winner().config));
  }

  RankReport report(const Decision& decision, std::span<const TuneResult> results) const {
    RankReport report;
    report.rank = communicator_.rank();
    report.size = communicator_.size();
    report.broken = decision.broken;
    report.measured = decision.measured;
    switch (decision.kind) {
      case Decision::Kind::plan:
        report.outcome = RankReport::Outcome::plan;
        break;
      case Decision::Kind::own:
        report.outcome = RankReport::Outcome::own;
        break;
      case Decision::Kind::defaults:
        report.outcome = RankReport::Outcome::defaults;
        report.why = decision.why.describe();
        return report;
    }
    report.plan_digest = to_hex(winners_digest(results));
    if (may_measure_) return report;
    // Nothing was measured: a plan that no record speaks for is the defaults.
    if (std::none_of(records_.begin(), records_.end(), [](const auto& r) { return r; })) {
      report.outcome = RankReport::Outcome::defaults;
      report.why = lacking_.empty() ? "ranks have different records"
                                    : format("no usable record on rank {}", lacking_);
    }
    return report;
  }

  void log(LogLevel level, const std::string& text) const { engine_.log(level, text); }
  void warn(const std::string& text) const {
    log(LogLevel::warning,
        format("rank {} of {}: {}", communicator_.rank(), communicator_.size(), text));
  }

  Engine& engine_;
  std::span<const Subject> subjects_;
  const TuneOptions& options_;
  Trials& trials_;
  Communicator& communicator_;
  const bool for_launch_, may_measure_;
  std::vector<std::optional<Recall>> known_;  ///< that answer the request and can be launched
  std::vector<CandidateList> lists_;
  std::vector<std::optional<runtime::ranks::Record>> records_;
  std::vector<std::map<std::size_t, Candidate>> seen_;  ///< by place in the list
  int rounds_ = 0;                                      ///< of measuring
  std::string lacking_;                                 ///< ranks without a record of some subject
};

TuneOptions Engine::with_ranks(TuneOptions options) const {
  if (!options.ranks) {
    options.ranks = options_.tuning.ranks;
    options.together = options_.tuning.together;
  }
  return options;
}

std::vector<TuneResult> Engine::tune_together(std::span<const Subject> subjects,
                                              const TuneOptions& asked, Trials& trials,
                                              bool for_launch) {
  if (subjects.empty()) return {};
  TuneOptions options = with_ranks(asked);
  if (!options.ranks) options.ranks = std::move(thread_communicators(1).front());
  runtime::check(options);
  std::lock_guard lock(tuning_);
  try {
    TogetherRun run(*this, subjects, options, trials, *options.ranks, for_launch);
    std::vector<TuneResult> results = run.run();
    for (std::size_t s = 0; s < results.size(); ++s) {
      const TuneResult& result = results[s];
      if (!result.from_store) ++tuned_;
      log(LogLevel::info,
          format("{} {}: {} by {} of rank {} of {}", result.kernel,
                 subjects[s].kernel->describe_problem(result.problem),
                 result.describe(result.winner()), to_string(result.agreed->outcome),
                 result.agreed->rank, result.agreed->size));
    }
    return results;
  } catch (const std::exception& error) {
    // The others must not wait for a rank that is not coming.
    options.ranks->abort({RankFailure::Kind::aborted, {options.ranks->rank()}, error.what()});
    throw;
  }
}

}  // namespace detail
}  // namespace kiln
