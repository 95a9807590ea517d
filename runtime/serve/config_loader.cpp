#include "runtime/serve/config_loader.hpp"

#include <utility>
#include <variant>

#include "kiln/detail/format.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/not_for_problem.hpp"
#include "runtime/tune/best_guess.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;

Values ConfigLoader::default_config(std::span<const std::int64_t> problem) const {
  return engine_.workshop().default_config(kernel_, problem);
}

bool ConfigLoader::launches_nothing(std::span<const std::int64_t> problem) const {
  const DeviceLimits& limits = engine_.device()->info().limits;
  return empty(kernel_.launch(default_config(problem), problem, limits));
}

detail::Ready ConfigLoader::no_launch() const {
  auto nothing = std::make_shared<Launchable>();
  nothing->config = kernel_.space.default_config(engine_.device()->info().target);
  nothing->start = [](const Launchable&, const Launch&, std::span<const std::int64_t>, Stream,
                      void**) {};
  return nothing;
}

ConfigLoader::Loaded ConfigLoader::load(std::span<const std::int64_t> problem,
                                        std::span<const std::int64_t> config, Access access) {
  if (fixed_)
    if (const Constraint* broken =
            kernel_.space.violated(config, problem, engine_.device()->info().limits))
      throw NotForProblem(format("kernel {} with {} for {} breaks a constraint: {}", kernel_.name,
                                 kernel_.space.describe(config), kernel_.describe_problem(problem),
                                 broken->reason));
  return loader_.load(problem, config, access);
}

ConfigLoader::Loaded ConfigLoader::untuned(std::span<const std::int64_t> problem, Access access,
                                           const std::optional<Values>& guess, Obstacle* obstacle) {
  Loaded made = load_untuned(problem, access, guess, obstacle);
  if (auto* const ready = std::get_if<Launchable>(&made)) ready->untuned = !fixed_;
  return made;
}

ConfigLoader::Loaded ConfigLoader::load_untuned(std::span<const std::int64_t> problem,
                                                Access access, const std::optional<Values>& guess,
                                                Obstacle* obstacle) {
  const Values base = default_config(problem);
  if (fixed_) return load(problem, base, access);
  const Values config = guess ? *guess : untuned_config(kernel_, problem, engine_.device()->info());
  std::optional<Missing> lacking;
  if (config != base) {
    try {
      Loaded made = load(problem, config, access);
      if (std::holds_alternative<Launchable>(made)) return made;
      lacking = std::get<Missing>(std::move(made));
    } catch (const WrongSymbol&) {
      throw;
    } catch (const Error& error) {
      if (obstacle) obstacle->why = error.what();
      engine_.log(LogLevel::warning,
                  format("{} {}: the untuned config cannot be used, so the default is tried: {}",
                         kernel_.name, kernel_.describe_problem(problem), error.what()));
    }
    if (obstacle) obstacle->missing = lacking;
  }
  Loaded made = load(problem, base, access);
  if (lacking) warn_of("untuned config", problem, *lacking, made);
  return made;
}

std::optional<ConfigLoader::Loaded> ConfigLoader::winner(std::span<const std::int64_t> problem,
                                                         const Values& config, Access access,
                                                         std::string* why) {
  try {
    return load(problem, config, access);
  } catch (const WrongSymbol&) {
    throw;
  } catch (const Error& error) {
    if (why) *why = error.what();
    engine_.log(LogLevel::warning,
                format("{} {}: the remembered winner cannot be used: {}", kernel_.name,
                       kernel_.describe_problem(problem), error.what()));
    return {};
  }
}

Problems::Made ConfigLoader::ready_or_warn(std::span<const std::int64_t> problem, Loaded made) {
  if (auto* ready = std::get_if<Launchable>(&made)) return std::move(*ready);
  Missing& missing = std::get<Missing>(made);
  engine_.wanted().warn_of(kernel_, problem, missing, "nothing can be launched");
  return std::move(missing);
}

Problems::Made ConfigLoader::to_publish_provisional(std::span<const std::int64_t> problem,
                                                    Loaded made) {
  if (auto* ready = std::get_if<Launchable>(&made)) return mark_provisional_(std::move(*ready));
  return ready_or_warn(problem, std::move(made));
}

ConfigLoader::BestKnown ConfigLoader::best_known(std::span<const std::int64_t> problem,
                                                 const std::optional<Values>& winner, Access access,
                                                 const std::optional<Values>& guess) {
  BestKnown best;
  if (winner) {
    auto loaded = this->winner(problem, *winner, access, &best.why);
    if (loaded) {
      if (const auto* missing = std::get_if<Missing>(&*loaded)) best.missing = *missing;
      best.made = *std::move(loaded);
      if (!best.missing || fixed_) return best;
    }
  }
  best.provisional = true;
  Obstacle obstacle;
  best.made = untuned(problem, access, guess, &obstacle);
  if (best.missing) {
    warn_of("winner", problem, *best.missing, best.made);
    return best;
  }
  if (!best.why.empty()) return best;
  best.why = obstacle.why;
  if (const auto* missing = std::get_if<Missing>(&best.made))
    best.missing = *missing;
  else
    best.missing = obstacle.missing;
  return best;
}

Problems::Made ConfigLoader::to_publish(std::span<const std::int64_t> problem, BestKnown best) {
  return best.provisional ? to_publish_provisional(problem, std::move(best.made))
                          : ready_or_warn(problem, std::move(best.made));
}

void ConfigLoader::warn_of(const char* what, std::span<const std::int64_t> problem,
                           const Missing& missing, const Loaded& instead) {
  const auto* ready = std::get_if<Launchable>(&instead);
  engine_.wanted().warn_of(
      kernel_, problem, missing,
      format("the {} is missing{}", what,
             !ready                                     ? ""
             : ready->config == default_config(problem) ? ", the default is used"
                                                        : ", the untuned config is used"));
}

}  // namespace kiln::runtime
