#include <cstdio>

#include <nlohmann/json.hpp>

#include "tools/commands.hpp"

namespace kiln::tools {

void add_list(CLI::App& app, Context& context) {
  auto* list = app.add_subcommand("list", "Show the kernels that this command knows");
  list->add_flag("--json", context.json, "Print JSON");
  list->callback([&context] {
    context.run = [&context] {
      if (context.json) {
        auto out = nlohmann::json::array();
        for (const RegisteredKernel& k : context.registry.kernels()) {
          const KernelDefinition d = k.make(k.types.front());
          nlohmann::json parameters = nlohmann::json::object();
          for (const Parameter& p : d.space.parameters()) parameters[p.name] = p.values;
          out.push_back({{"name", k.name},
                         {"summary", k.summary},
                         {"types", k.types},
                         {"problem", d.problem_fields},
                         {"parameters", parameters}});
        }
        std::puts(out.dump(2).c_str());
        return kDone;
      }
      for (const RegisteredKernel& k : context.registry.kernels()) {
        const KernelDefinition d = k.make(k.types.front());
        std::string types, fields;
        for (const auto& t : k.types) types += (types.empty() ? "" : "|") + t;
        for (const auto& f : d.problem_fields) fields += (fields.empty() ? "" : ",") + f;
        std::printf("%-14s %-14s --problem %-18s %6.0f configs  %s\n", k.name.c_str(),
                    types.c_str(), fields.c_str(), d.space.combinations(), k.summary.c_str());
      }
      return kDone;
    };
  });
}

}  // namespace kiln::tools
