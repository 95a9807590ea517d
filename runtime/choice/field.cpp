#include "runtime/choice/field.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

constexpr std::size_t kIdBytes = 6;  // JSON readers that know doubles alone keep them exactly
std::int64_t id_of(const Contender& contender) {
  const std::string text = contender.what().name + '\n' + contender.version();
  const Digest digest = sha256(text);
  std::int64_t id = 0;
  for (std::size_t i = 0; i < kIdBytes; ++i)
    id = id << 8 | std::to_integer<std::int64_t>(digest[i]);
  return id + 1;
}

/// What else a measurement depends on that parameters and problem do not say.
std::string version_of(const detail::ChoiceDescription& choice,
                       std::span<const std::unique_ptr<Contender>> contenders,
                       std::span<const std::int64_t> problem) {
  const KernelDefinition& o = choice.operation;
  std::string text = o.name + " " + o.signature();
  for (const std::string& type : o.types) text += " " + type;
  text += format("; {} relative, {} absolute, {} mismatches; data {};", o.tolerance.relative,
                 o.tolerance.absolute, o.tolerance.mismatches, o.data_version);
  for (const auto& contender : contenders) {
    text += " " + contender->what().name;
    if (const std::string identity = contender->identity(problem); !identity.empty())
      text += format(" ({})", identity);
  }
  return text;
}

}  // namespace

Field make_field(const detail::ChoiceDescription& choice,
                 std::span<const std::unique_ptr<Contender>> contenders,
                 std::span<const std::int64_t> problem, bool deterministic) {
  Field field;
  detail::FunctionDescription& subject = field.subject;
  subject.name = choice.name;
  subject.of_a_choice = true;
  subject.version = version_of(choice, contenders, problem);
  subject.deterministic = deterministic;
  subject.problem_fields = choice.operation.problem_fields;

  std::vector<std::int64_t> ids;
  std::vector<std::string> names, parameters{"alternative"};
  std::string reasons;
  for (const auto& contender : contenders) {
    Entrance& entrance = field.entrances.emplace_back(contender->enter(problem));
    if (deterministic && contender->what().numerics.empty() && !entrance.candidates.empty())
      entrance.candidates.resize(1);
    const std::string& name = contender->what().name;
    const auto own = contender->parameters();
    field.ids.push_back(id_of(*contender));
    field.first.push_back(parameters.size());
    field.count.push_back(own.size());
    for (const std::string& parameter : own) parameters.push_back(name + "." + parameter);
    if (entrance.candidates.empty()) {
      reasons += format("{}{}: {}", reasons.empty() ? "" : "; ", name, entrance.why_not);
    } else {
      ids.push_back(field.ids.back());
      names.push_back(name);
    }
  }
  if (ids.empty())
    throw UserError(format("choice {} for {}: no alternative can do it: {}", choice.name,
                           choice.operation.describe_problem(problem), reasons));

  for (std::size_t i = 0; i < contenders.size(); ++i)
    for (const Values& candidate : field.entrances[i].candidates) {
      Values& config = subject.configs.emplace_back(parameters.size(), 0);
      config[0] = field.ids[i];
      std::copy(candidate.begin(), candidate.end(),
                config.begin() + static_cast<std::ptrdiff_t>(field.first[i]));
    }
  const Values& first = subject.configs.front();
  subject.space.parameter(parameters[0], ids, first[0], FieldKind::enumeration, names);
  for (std::size_t p = 1; p < parameters.size(); ++p) {
    std::set<std::int64_t> values;
    for (const Values& config : subject.configs) values.insert(config[p]);
    subject.space.parameter(parameters[p], {values.begin(), values.end()}, first[p]);
  }
  return field;
}

Field::Place Field::place(std::span<const std::int64_t> config) const {
  const auto found = std::ranges::find(ids, config[0]);
  const auto i = static_cast<std::size_t>(found - ids.begin());
  const auto own = config.subspan(first.at(i), count[i]);
  return {i, Values(own.begin(), own.end())};
}

}  // namespace kiln::runtime
