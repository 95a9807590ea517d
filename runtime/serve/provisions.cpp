#include "runtime/serve/provisions.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>
#include <variant>

#include "kiln/detail/format.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/tune/best_guess.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;
using detail::Ready;

Provisions::~Provisions() {
  try {
    for (const auto& [problem, launches] : launched_unprepared())
      if (!engine_.wanted().note(engine_.wanted().instance(kernel_, problem, {}), launches))
        ++engine_.workshop().telemetry().counters.wanted_cut;
  } catch (const std::exception&) {  // no memory: the list is shorter
  }
}

std::optional<Recall> Provisions::on_record(std::span<const std::int64_t> problem,
                                            const TuneOptions& options, bool for_launch,
                                            const SourceDigests* sources) {
  if (engine_.options().tuning.ranks || fixed_) return {};
  if (Background* const background = engine_.background();
      background && background->holds_back(kernel_, problem))
    return {};
  RecordBook& records = engine_.records();
  return sources ? records.recall(kernel_, problem, options, for_launch, *sources)
                 : records.recall(kernel_, problem, options, for_launch);
}

bool Provisions::goes_on(const Recall& known) const {
  const Background* const background = engine_.background();
  return background && background->goes_on(known);
}

BestConfigs Provisions::best_configs(std::span<const std::int64_t> problem,
                                     const TuneOptions& tuning, const SourceDigests* sources) {
  const DeviceInfo& device = engine_.device()->info();
  const Values base = configs_.default_config(problem);
  BestConfigs best;
  best.seen = problems_.find(problem);
  if (fixed_) {
    best.winner = base;
    best.searched = true;
  } else if (tuning.ranks) {
    best.winner = problems_.agreed(problem);
  } else if (const Ready kept = problems_.kept_choice(problem)) {
    best.winner = kept->config;
    best.searched = true;
  } else if (const auto record = on_record(problem, tuning, false, sources)) {
    best.winner = record->result.winner().config;
    best.searched = answers(*record, tuning, false);
    best.goes_on = goes_on(*record);
  }
  // An empty problem launches nothing that could be timed.
  if (empty(kernel_.launch(base, problem, device.limits))) best.searched = true;
  // What runs untuned now may have been chosen by neighbours' records. The default may run in place
  // of what should.
  const bool chosen = best.seen && best.seen->untuned && best.seen->config != base;
  best.configs = {best.winner ? *best.winner
                  : chosen    ? best.seen->config
                              : untuned_config(kernel_, problem, device)};
  if (best.configs.front() != base) best.configs.push_back(base);
  return best;
}

void Provisions::guess_by_records(std::span<const std::int64_t> problem, const TuneOptions& tuning,
                                  Builder::Access access, BestConfigs& best) {
  const DeviceInfo& device = engine_.device()->info();
  if (best.winner || best.seen || fixed_ || tuning.ranks || kernel_.deterministic ||
      untuned_for_problem(kernel_, problem, device.limits))
    return;
  auto nearest = engine_.records().nearest_winner(kernel_, problem);
  if (!nearest || *nearest == best.configs.front()) return;
  // What is only looked up had better be there.
  if (access == Builder::Access::look_up &&
      !engine_.builder().build(kernel_, *nearest, device.target, access).binary())
    return;
  const Values base = best.configs.back();
  best.configs = {*nearest};
  if (*nearest != base) best.configs.push_back(base);
  best.guess = std::move(nearest);
}

Served Provisions::serve(std::span<const std::int64_t> problem, const BestConfigs& best,
                         Builder::Access access, bool search_follows, Stay stay) {
  Served served;
  if (stay == Stay::always)
    problems_.pin(problem);  // before it is held, so that it cannot leave in between
  const Ready before = problems_.find(problem);
  const auto untuned = [&]() -> Problems::Loaded {
    ConfigLoader::Obstacle obstacle;
    Problems::Loaded made = configs_.untuned(problem, access, best.guess, &obstacle);
    if (const auto* missing = std::get_if<Missing>(&made)) {
      if (!served.missing) served.missing = *missing;
    } else if (served.why.empty() && !served.missing) {
      served.why = obstacle.why;
      served.missing = obstacle.missing;
    }
    return made;
  };
  const auto work = [&]() -> Problems::Made {
    if (before && before->config == *best.winner && !before->provisional) return as_tuned(*before);
    if (before) {  // replaced by the winner alone
      auto winner = configs_.winner(problem, *best.winner, access, &served.why);
      if (winner && std::holds_alternative<Launchable>(*winner))
        return best.goes_on ? configs_.to_publish_provisional(problem, *std::move(winner))
                            : std::get<Launchable>(std::move(*winner));
      if (winner) served.missing = std::get<Missing>(std::move(*winner));
      return Problems::Unmade{};
    }
    auto loaded = configs_.best_known(problem, best.winner, access, best.guess);
    served.why = loaded.why;
    served.missing = loaded.missing;
    loaded.provisional = loaded.provisional || best.goes_on;
    return configs_.to_publish(problem, std::move(loaded));
  };
  // What is provisional or untuned is neither any more when it turns out to be the winner.
  const bool same = before && best.winner && before->config == *best.winner;
  const bool better = best.winner && (!same                 ? true
                                      : before->provisional ? !search_follows && !best.goes_on
                                                            : before->untuned);
  const bool chosen_meanwhile = before && before != best.seen && !before->provisional;
  if (before && (!better || chosen_meanwhile)) {
    // Nothing better is known.
  } else if (search_follows && !best.winner) {
    problems_.stand_in(problem, Standing::meanwhile, untuned);
  } else if (!problems_.try_make(problem, work, Problems::If::always)) {
    served.why = "another thread is making it ready";
    problems_.stand_in(problem, Standing::meanwhile, untuned);
  }
  served.ready = problems_.served(problem, Standing::meanwhile);
  served.best = served.ready && best.winner && served.ready->config == *best.winner;
  return served;
}

void Provisions::use_stand_in(std::span<const std::int64_t> problem, Stay stay) {
  if (stay == Stay::always) problems_.pin(problem);
  if (problems_.find(problem)) return;
  const Ready served = problems_.served(problem, Standing::meanwhile);
  if (!served) return;
  problems_.try_make(problem, [&] {
    const auto known = on_record(problem, engine_.options().tuning, true);
    const bool is_final =
        known && known->result.winner().config == served->config && !goes_on(*known);
    return is_final ? configs_.ready_or_warn(problem, as_tuned(*served))
                    : configs_.to_publish_provisional(problem, *served);
  });
}

bool Provisions::use_expected(std::span<const std::int64_t> problem, const Values& config,
                              Builder::Access access, Stay stay) {
  if (stay == Stay::always) problems_.pin(problem);
  bool used = false;
  problems_.try_make(problem, [&]() -> Problems::Made {
    Problems::Loaded made = configs_.load(problem, config, access);
    if (std::holds_alternative<Missing>(made)) return Problems::Unmade{};
    used = true;
    return configs_.to_publish_provisional(problem, std::move(made));
  });
  return used;
}

void Provisions::use_better_known(std::span<const std::int64_t> problem, const TuneResult& known) {
  const Ready used = problems_.find(problem);
  const Candidate& winner = known.winner();
  if (!used || (used->provisional && engine_.background()) || used->config == winner.config ||
      winner.status != CandidateStatus::measured || problems_.kept_choice(problem))
    return;
  auto made = configs_.winner(problem, winner.config);
  if (auto* better = made ? std::get_if<Launchable>(&*made) : nullptr)
    problems_.choose_over(used, std::move(*better));
}

void Provisions::keep_default(std::span<const Values> problems, Builder::Access access) {
  if (kernel_.deterministic) return;  // nothing stands in for what was not prepared
  const auto is_default = [&](const Ready& ready) {
    // A config that some problem has for its default.
    return std::any_of(problems.begin(), problems.end(), [&](const Values& problem) {
      return ready->config == configs_.default_config(problem);
    });
  };
  // The config that is kept already stays, whatever was loaded since: ranks that prepared alike
  // keep the same config.
  for (const Ready& ready : reserve_.kept())
    if (is_default(ready)) return;
  for (Ready& ready : loaded())
    if (is_default(ready)) return reserve_.keep(std::move(ready));
  const DeviceInfo& device = engine_.device()->info();
  for (const Values& problem : problems) try {
      const Values base = configs_.default_config(problem);
      if (kernel_.space.violated(base, problem, device.limits)) continue;
      // Asked first, because what is missing here is not wanted: nothing was to launch it.
      if (!engine_.builder().build(kernel_, base, device.target, access).binary()) continue;
      auto made = configs_.load(problem, base, access);
      if (auto* ready = std::get_if<Launchable>(&made))
        return reserve_.keep(std::make_shared<const Launchable>(std::move(*ready)));
    } catch (const std::exception& error) {
      if (engine_.device()->lost()) throw;
      engine_.log(LogLevel::debug,
                  format("{}: the default cannot be kept loaded: {}", kernel_.name, error.what()));
    } catch (...) {
      engine_.log(LogLevel::debug, format("{}: the default cannot be kept loaded: {}", kernel_.name,
                                          kForeignException));
    }
}

WorkspaceSize Provisions::workspace_size() const {
  WorkspaceSize largest;
  for (const Ready& ready : loaded())
    if (const auto size = detail::planned_workspace(kernel_, ready->config, ready->problem,
                                                    engine_.device()->info().limits))
      largest = max(largest, *size);
  return largest;
}

void Provisions::seal() {
  notes_.begin(kernel_.problem_fields.size(), &engine_.workshop().telemetry().counters.wanted_cut);
  reserve_.renew(loaded(), in_use(), kernel_.space.default_config(engine_.device()->info().target),
                 engine_.device()->info().limits);
}

Ready Provisions::stand_in(std::span<const std::int64_t> problem) const {
  Ready served;
  if (!reserve_.distrusted(problem)) served = problems_.served(problem, Standing::meanwhile);
  // Finding the configs that compute a problem's bits takes a lock.
  if (!served && !kernel_.deterministic)
    served = reserve_.find(problem, engine_.device()->info().limits);
  return served;
}

Ready Provisions::unprepared(std::span<const std::int64_t> problem, OnUnprepared what) {
  Ready served;
  if (what != OnUnprepared::error) served = stand_in(problem);
  const bool first = notes_.add(problem);
  unprepared_.add(served != nullptr);
  if (served && first && what == OnUnprepared::warn)
    engine_.log(LogLevel::warning,
                format("{} {}: it was not prepared, so {} is launched", kernel_.name,
                       kernel_.describe_problem(problem), kernel_.space.describe(served->config)));
  if (served) return served;
  throw UnpreparedError(
      format("kernel {} for {}: it was not prepared, and the runtime is sealed{}; name the problem "
             "in the manifest that Runtime::prepare is given (Runtime::wanted() has it)",
             kernel_.name, kernel_.describe_problem(problem),
             what == OnUnprepared::error ? "" : ", with nothing loaded that can serve it"),
      engine_.wanted().instance(kernel_, problem, {}));
}

std::map<Values, std::uint64_t> Provisions::launched_unprepared() const {
  std::map<Values, std::uint64_t> problems = notes_.all();
  std::erase_if(problems, [&](const auto& noted) { return problems_.find(noted.first); });
  return problems;
}

std::vector<Ready> Provisions::in_use() const {
  std::map<Values, Ready> problems;
  for (const Ready& ready : problems_.loaded())
    if (Ready used = problems_.find(ready->problem); used && used->loaded)
      problems.try_emplace(used->problem, std::move(used));
  std::vector<Ready> all;
  for (auto& [problem, used] : problems) all.push_back(std::move(used));
  return all;
}

/// All that this handle has loaded, for whatever problem.
std::vector<Ready> Provisions::loaded() const {
  std::vector<Ready> all = problems_.loaded(), kept = reserve_.kept();
  all.insert(all.end(), kept.begin(), kept.end());
  // In mode collect, what stands for a missing binary is not loaded.
  std::erase_if(all, [](const Ready& ready) { return !ready->loaded; });
  return all;
}

}  // namespace kiln::runtime
