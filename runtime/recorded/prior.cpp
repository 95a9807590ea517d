#include "runtime/recorded/prior.hpp"

#include <cstdlib>
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

std::string spelling(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return text.empty() || *end ? text : format("{}", number);
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
    throw UserError(format("{} tells nothing of {}: it has no parameter {}", prior.file().string(),
                           space.name(), missing));
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
