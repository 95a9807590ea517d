#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/commands.hpp"

namespace kiln::tools {

using nlohmann::json;

namespace {

std::string joined(const std::vector<std::string>& parts, char separator) {
  std::string text;
  for (const std::string& part : parts) (text.empty() ? text : text += separator) += part;
  return text;
}

json of_kernel(const RegisteredKernel& k) {
  const KernelDefinition d = k.make(k.types.front());
  json parameters = json::object();
  for (const Parameter& p : d.space.parameters()) parameters[p.name] = p.values;
  return {{"name", k.name},
          {"summary", k.summary},
          {"types", k.types},
          {"problem", d.problem_fields},
          {"parameters", parameters}};
}

json of_choice(const RegisteredChoice& c) {
  const auto choice = c.make(c.types.front());
  json alternatives = json::array();
  for (const auto& alternative : choice.alternatives) alternatives.push_back(alternative.name);
  return {{"name", c.name},
          {"summary", c.summary},
          {"types", c.types},
          {"problem", choice.operation.problem_fields},
          {"alternatives", alternatives}};
}

void show(const RegisteredKernel& k) {
  const KernelDefinition d = k.make(k.types.front());
  std::printf("%-14s %-14s --problem %-18s %6.0f configs  %s\n", k.name.c_str(),
              joined(k.types, '|').c_str(), joined(d.problem_fields, ',').c_str(),
              d.space.combinations(), k.summary.c_str());
}

void show(const RegisteredChoice& c) {
  std::printf("%-14s %-14s problem %-18s %s\n", c.name.c_str(), joined(c.types, '|').c_str(),
              joined(c.make(c.types.front()).operation.problem_fields, ',').c_str(),
              c.summary.c_str());
}

template <class Registered, class Tell>
int list(const std::vector<Registered>& all, bool as_json, Tell tell) {
  json out = json::array();
  for (const Registered& one : all)
    if (as_json)
      out.push_back(tell(one));
    else
      show(one);
  if (as_json) std::puts(out.dump(2).c_str());
  return kDone;
}

}  // namespace

void add_list(CLI::App& app, Context& context) {
  auto* command = app.add_subcommand("list", "Show the kernels that this command knows");
  command->add_flag("--json", context.json, "Print JSON");
  const auto choices = std::make_shared<bool>(false);
  command->add_flag("--choices", *choices,
                    "Show the choices between kernels and libraries instead");
  command->callback([&context, choices] {
    context.run = [&context, choices] {
      return *choices ? list(context.registry.choices(), context.json, of_choice)
                      : list(context.registry.kernels(), context.json, of_kernel);
    };
  });
}

}  // namespace kiln::tools
