#include "runtime/choice/field.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/serve/engine.hpp"

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

/// What a measurement depends on besides the parameters and the problem.
std::string version_of(const detail::ChoiceDescription& choice, const Switches& switches,
                       std::span<const std::unique_ptr<Contender>> contenders,
                       std::span<const Entrance> entrances) {
  const KernelDefinition& o = choice.operation;
  std::string text = o.name + " " + o.signature();
  for (const std::string& type : o.types) text += " " + type;
  text += format("; {} relative, {} absolute, {} mismatches{}; data {};", o.tolerance.relative,
                 o.tolerance.absolute, o.tolerance.mismatches,
                 o.tolerance.norm > 0 ? format(", {} norm", o.tolerance.norm) : "", o.data_version);
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    if (entrances[i].left_out) continue;
    text += " " + contenders[i]->what().name;
    if (const std::string& identity = entrances[i].identity; !identity.empty())
      text += format(" ({})", identity);
  }
  if (switches.gate_seconds > 0) text += format("; gate at {} s", switches.gate_seconds);
  return text;
}

/// In the order of the choice's alternatives.
std::vector<LeftOut> left_out(const detail::ChoiceDescription& choice, const Switches& switches,
                              std::span<const Entrance> entrances) {
  std::vector<LeftOut> all;
  for (std::size_t i = 0, on = 0; i < choice.alternatives.size(); ++i) {
    const Entrance* const entrance = switches.on[i] ? &entrances[on++] : nullptr;
    const std::string& why = !entrance                   ? switches.why_not[i]
                             : entrance->why_not.empty() ? entrance->why_not_first
                                                         : entrance->why_not;
    if (!why.empty()) all.push_back({choice.alternatives[i].name, why});
  }
  return all;
}

/// What a kernel runs with, by its own handle.
std::map<std::string, std::int64_t> config_of(const Contender& contender,
                                              std::span<const std::int64_t> bucket) {
  const auto kernel = contender.kernel();
  const ProblemValues own = kernel->definition().bucketed(bucket);
  // What another process will find on record comes first.
  if (const auto known = kernel->known(own))
    return kernel->what().named_config(known->winner().config);
  const detail::Ready used = kernel->find(own);
  return used ? kernel->what().named_config(used->config) : std::map<std::string, std::int64_t>();
}

/// Asks for buckets where a result is told of alone, because that runs a kernel's own code. Where
/// ranks decide what kernels run with, it is not told.
std::function<std::vector<KernelOfChoice>(std::span<const std::int64_t>)> kernels_of(
    std::span<const std::unique_ptr<Contender>> contenders, std::span<const Entrance> entrances,
    bool by_ranks) {
  std::vector<const Contender*> kernels;
  for (std::size_t i = 0; i < contenders.size(); ++i)
    if (contenders[i]->what().kernel && !entrances[i].candidates.empty())
      kernels.push_back(contenders[i].get());
  return [kernels, by_ranks](std::span<const std::int64_t> problem) {
    std::vector<KernelOfChoice> all;
    for (const Contender* one : kernels) try {
        const KernelDefinition& kernel = *one->what().kernel;
        KernelOfChoice& of = all.emplace_back();
        of.alternative = one->what().name;
        of.kernel = kernel.name;
        of.types = kernel.types;
        of.problem = Values(kernel.bucketed(problem));
        if (!by_ranks) of.config = config_of(*one, problem);
      } catch (...) {  // the kernel's own tuning tells of that
      }
    return all;
  };
}

}  // namespace

std::vector<Entrance> enter_all(std::span<const std::unique_ptr<Contender>> contenders,
                                std::span<const std::int64_t> problem, bool deterministic) {
  std::vector<Entrance> entrances;
  for (const auto& contender : contenders) {
    Entrance& entrance = entrances.emplace_back(contender->enter(problem));
    entrance.identity = contender->identity(problem);
    if (deterministic && contender->what().numerics.empty() && !entrance.candidates.empty())
      entrance.candidates.resize(1);
  }
  return entrances;
}

Field make_field(const detail::ChoiceDescription& choice, const Switches& switches,
                 std::span<const std::unique_ptr<Contender>> contenders,
                 std::span<const std::int64_t> problem, std::vector<Entrance> entrances,
                 bool deterministic, bool by_ranks) {
  Field field;
  detail::FunctionDescription& subject = field.subject;
  std::vector<std::int64_t> ids;
  std::vector<std::string> names, parameters{"alternative"};
  std::string reasons;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const auto& contender = contenders[i];
    const std::string& name = contender->what().name;
    const auto own = entrances[i].left_out ? std::vector<std::string>{} : contender->parameters();
    field.ids.push_back(id_of(*contender));
    field.first.push_back(parameters.size());
    field.count.push_back(own.size());
    for (const std::string& parameter : own) parameters.push_back(name + "." + parameter);
    if (entrances[i].candidates.empty()) {
      reasons += format("{}{}: {}", reasons.empty() ? "" : "; ", name, entrances[i].why_not);
    } else {
      ids.push_back(field.ids.back());
      names.push_back(name);
    }
  }
  if (ids.empty())
    throw NoAlternative(format("choice {} for {}: no alternative can do it: {}", choice.name,
                               choice.operation.describe_problem(problem), reasons));

  subject.name = choice.name;
  subject.of_a_choice = true;
  subject.types = choice.types;
  subject.flops = choice.operation.flops;
  subject.bytes = choice.operation.bytes;
  subject.left_out = left_out(choice, switches, entrances);
  subject.kernels = kernels_of(contenders, entrances, by_ranks);
  subject.version = version_of(choice, switches, contenders, entrances);
  subject.deterministic = deterministic;
  subject.problem_fields = choice.operation.problem_fields;
  for (std::size_t i = 0; i < contenders.size(); ++i)
    for (const Values& candidate : entrances[i].candidates) {
      Values& config = subject.configs.emplace_back(parameters.size(), 0);
      config[0] = field.ids[i];
      std::copy(candidate.begin(), candidate.end(),
                config.begin() + static_cast<std::ptrdiff_t>(field.first[i]));
    }
  field.entrances = std::move(entrances);
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

bool lacks_something_now(const Decision& decision) {
  return !decision.by_ranks && std::ranges::any_of(decision.field.entrances, &Entrance::passing);
}

}  // namespace kiln::runtime
