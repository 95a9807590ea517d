#include "tools/problems.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include <nlohmann/json.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "kiln/manifest.hpp"
#include "kiln/precompile.hpp"

namespace kiln::tools {

using kiln::detail::format;
using nlohmann::json;

namespace {

using Fields = std::map<std::string, std::int64_t>;

std::int64_t parse_integer(const std::string& option, const std::string& name,
                           const std::string& text) {
  std::size_t end = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  if (text.empty() || end != text.size())
    throw UserError(format("{}: '{}' of field '{}' is not an integer", option, text, name));
  return value;
}

NamedProblem make(const Registry& registry, const std::string& kernel, const std::string& types,
                  const Fields& fields) {
  NamedProblem named{registry.make(kernel, types), {}, {}, 0};
  named.problem = named.kernel.problem(fields);
  return named;
}

NamedProblem of_choice(kiln::detail::ChoiceDescription choice) {
  NamedProblem named{choice.operation, {}, {}, 0};
  named.kernel.name = choice.name;
  named.kernel.types = choice.types;
  named.choice = std::move(choice);
  return named;
}

NamedProblem make_choice(const Registry& registry, const std::string& name,
                         const std::string& types, const Fields& fields) {
  NamedProblem named = of_choice(registry.make_choice(name, types));
  named.problem = named.kernel.problem(fields);
  return named;
}

/// Each problem once, with all its launches for its weight.
std::vector<NamedProblem> problems_of(const Manifest& manifest, const Registry& registry,
                                      const std::vector<std::string>& only) {
  std::vector<NamedProblem> problems;
  std::map<std::tuple<bool, std::string, std::vector<std::string>, Values, std::string>,
           std::size_t>
      places;
  const std::vector<PrecompileJob> jobs = jobs_for(manifest, registry);  // one for each instance
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const PrecompileJob& job = jobs[i];
    NamedProblem named = job.choice ? of_choice(*job.choice) : NamedProblem{job.kernel, {}, {}, 0};
    const KernelDefinition& kernel = named.kernel;
    if (!only.empty() && (job.choice || std::ranges::find(only, kernel.name) == only.end()))
      continue;
    const std::string device = job.targets.front().kind == Target::Kind::cuda ? "cuda" : "host";
    const auto [place, first] = places.try_emplace(
        {job.choice.has_value(), kernel.name, kernel.types, job.problem, device}, problems.size());
    named.problem = job.problem;
    named.devices = {device};
    if (first) problems.push_back(std::move(named));
    problems[place->second].weight += static_cast<double>(manifest.wanted[i].launches);
  }
  return problems;
}

/// A misspelt field would be taken for one that was left out.
void check(const json& item) {
  if (!item.is_object()) throw UserError("it is not an object: " + item.dump());
  if (item.contains("kernel") == item.contains("choice"))
    throw UserError("it needs one of `kernel` and `choice`: " + item.dump());
  for (const auto& [name, value] : item.items())
    if (name != "kernel" && name != "choice" && name != "types" && name != "problem" &&
        name != "devices" && name != "weight")
      throw UserError(format(
          "unknown field '{}' (known: kernel, choice, types, problem, devices, weight) in {}", name,
          item.dump()));
  const json problem = item.value("problem", json::object());
  for (const auto& [name, value] : problem.items())
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX))
      throw UserError(format("{}={} is not an integer", name, value.dump()));
  const json weight = item.value("weight", json(0));
  if (!weight.is_number() || !(weight.get<double>() >= 0) || !std::isfinite(weight.get<double>()))
    throw UserError(format("weight {} is no number of launches in {}", weight.dump(), item.dump()));
  for (const json& device : item.value("devices", json::array()))
    if (device != "cuda" && device != "host")
      throw UserError(format("unknown device {} (known: cuda, host)", device.dump()));
}

}  // namespace

std::map<std::string, std::int64_t> parse_fields(const std::string& option,
                                                 const std::string& text) {
  Fields fields;
  if (text.empty()) return fields;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0)
      throw UserError(format("{}: '{}' is not of the form field=value", option, item));
    const std::string name = item.substr(0, equals);
    if (!fields.emplace(name, parse_integer(option, name, item.substr(equals + 1))).second)
      throw UserError(format("{}: field '{}' is given twice", option, name));
    begin = end + 1;
  }
  return fields;
}

bool NamedProblem::meant_for(Target::Kind kind) const {
  const char* name = kind == Target::Kind::cuda ? "cuda" : "host";
  return devices.empty() || std::find(devices.begin(), devices.end(), name) != devices.end();
}

NamedProblem named_problem(const Registry& registry, const std::string& kernel,
                           const std::string& types, const std::string& text) {
  const KernelDefinition definition = registry.make(kernel, types);
  if (text.empty() && !definition.problem_fields.empty())
    throw UserError(format("--problem is missing; kernel {} needs {}", definition.name,
                           wanted_fields(definition)));
  return {definition, definition.problem(parse_fields("--problem", text)), {}, 0};
}

std::vector<NamedProblem> read_problems(const std::string& file, const Registry& registry,
                                        const std::vector<std::string>& only) {
  std::error_code ignored;
  std::ifstream in;
  if (std::filesystem::is_regular_file(file, ignored)) in.open(file);
  if (!in.is_open()) throw UserError(format("--problems: {} is not a file that can be read", file));
  std::vector<NamedProblem> problems;
  std::set<std::string> seen;
  std::size_t entry = 0;
  const auto trouble = [&](std::string_view what) {
    const std::string place = entry > 0 ? format("entry {}: ", entry) : "";
    return UserError(format("--problems: {}: {}{}", file, place, what));
  };
  try {
    const json document = json::parse(in);
    if (document.is_object()) {
      problems = problems_of(Manifest::read(file), registry, only);
      for (const NamedProblem& problem : problems) seen.insert(problem.kernel.name);
    }
    for (const json& item : document.is_object() ? json::array() : document) {
      ++entry;
      check(item);
      const bool is_choice = item.contains("choice");
      const std::string name = item.at(is_choice ? "choice" : "kernel");
      if (!only.empty() && (is_choice || std::ranges::find(only, name) == only.end())) continue;
      seen.insert(name);
      problems.push_back((is_choice ? make_choice : make)(registry, name, item.value("types", ""),
                                                          item.at("problem").get<Fields>()));
      if (const auto on = item.find("devices"); on != item.end())
        problems.back().devices = on->get<std::vector<std::string>>();
      problems.back().weight = item.value("weight", 0.0);
    }
  } catch (const json::exception& unfit) {
    // The user need not see the library's own name for its error.
    const std::string_view what = unfit.what();
    const auto text = what.find("] ");
    throw trouble(what.substr(text == what.npos ? 0 : text + 2));
  } catch (const UserError& error) {
    throw trouble(error.what());
  }
  for (const std::string& kernel : only)
    if (!seen.count(kernel))
      throw UserError(format("--problems: {} has no problem of kernel {}", file, kernel));
  return problems;
}

std::string wanted_fields(const KernelDefinition& kernel) {
  std::string fields;
  for (const std::string& f : kernel.problem_fields)
    fields += (fields.empty() ? "" : ",") + f + "=N";
  return fields;
}

}  // namespace kiln::tools
