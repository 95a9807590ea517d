#include "runtime/recorded/prior.hpp"

#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// The number that the whole text spells; whatever the locale.
template <class Number>
std::optional<Number> number(const std::string& text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

/// One spelling of each number: integers of 64 bits exactly.
std::string spelling(const std::string& text) {
  if (const auto integer = number<std::int64_t>(text)) return format("{}", *integer);
  if (const auto real = number<double>(text)) return format("{}", *real);
  return text;
}

/// A parameter of the space as the prior has it.
struct Match {
  std::size_t place;
  std::map<std::int64_t, std::int64_t> values;  ///< the prior's to the space's
};

std::optional<Match> match(const RecordedParameter& wanted,
                           const std::vector<RecordedParameter>& all) {
  for (std::size_t p = 0; p < all.size(); ++p) {
    if (all[p].name != wanted.name) continue;
    std::map<std::string, std::int64_t> known;
    for (std::size_t v = 0; v < wanted.values.size(); ++v)
      known.emplace(spelling(wanted.texts[v]), wanted.values[v]);
    Match match{p, {}};
    for (std::size_t v = 0; v < all[p].values.size(); ++v)
      if (const auto found = known.find(spelling(all[p].texts[v])); found != known.end())
        match.values.emplace(all[p].values[v], found->second);
    return match;
  }
  return {};
}

}  // namespace

Evidence evidence_from(const RecordedSpace& prior, const RecordedSpace& space,
                       const std::function<bool(std::size_t)>& told) {
  std::vector<std::optional<Match>> matches;
  Evidence evidence;
  std::size_t choices = 0, shared = 0;
  std::string missing;
  for (const RecordedParameter& parameter : space.parameters()) {
    matches.push_back(match(parameter, prior.parameters()));
    evidence.unknown.push_back(!matches.back());
    if (parameter.values.size() < 2) continue;
    ++choices;
    shared += matches.back() ? 1 : 0;
    if (!matches.back()) missing += (missing.empty() ? "" : ", ") + parameter.name;
  }
  if (2 * shared < choices)
    throw UserError(format("{} cannot serve as a prior for {}: it lacks the parameters {}",
                           prior.file().string(), space.name(), missing));
  bool works = false;
  for (std::size_t i = 0; i < prior.size(); ++i) {
    if (!told(i)) continue;
    const Values config = prior.config(i);
    Evidence::Result result{Values(matches.size()), prior.seconds(i)};
    bool fits = true;
    for (std::size_t p = 0; p < matches.size() && fits; ++p) {
      if (!matches[p]) continue;
      const auto value = matches[p]->values.find(config[matches[p]->place]);
      fits = value != matches[p]->values.end();
      if (fits) result.config[p] = value->second;
    }
    if (!fits) continue;
    works = works || prior.status(i) == CandidateStatus::measured;
    evidence.results.push_back(std::move(result));
  }
  if (!works)
    throw UserError(
        format("{} tells nothing of {}: none of its configs that work has values that "
               "are known there",
               prior.file().string(), space.name()));
  return evidence;
}

}  // namespace kiln::runtime
