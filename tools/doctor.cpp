#include "kiln/doctor.hpp"

#include <cstdio>

#include <nlohmann/json.hpp>

#include "kiln/version.hpp"
#include "tools/commands.hpp"

namespace kiln::tools {

using nlohmann::json;

namespace {

json device_json(const DeviceInfo& device) {
  json fingerprint = json::object(), software = json::object();
  for (const KeyField& f : device.fingerprint) fingerprint[f.name] = f.value;
  for (const KeyField& f : device.software) software[f.name] = f.value;
  return {{"id", device.id},
          {"name", device.name},
          {"target", device.target.arch},
          {"multiprocessors", device.limits.multiprocessors},
          {"memory_bytes", device.limits.memory_bytes},
          {"shared_bytes_per_block", device.limits.shared_per_block_optin},
          {"fingerprint", fingerprint},
          {"software", software}};
}

int run_doctor(const Context& context) {
  const std::vector<Component> components = diagnose(context.store);
  const std::vector<DeviceInfo> found = devices();
  RuntimeOptions options;
  options.store = context.store;
  const std::vector<Setting> held = settings(options);
  const std::vector<std::string> unknown = unknown_variables();
  if (context.json) {
    json list = json::object(), device_list = json::array();
    for (const Component& c : components)
      list[c.name] = {{"available", c.available},
                      {"version", c.version},
                      {"detail", c.detail},
                      {"problem", c.problem}};
    for (const DeviceInfo& d : found) device_list.push_back(device_json(d));
    json variables = json::object();
    for (const Setting& s : held)
      variables[s.name] = {{"value", s.value}, {"from", to_string(s.from)}, {"problem", s.problem}};
    std::puts(json{{"kiln", KILN_VERSION},
                   {"components", list},
                   {"devices", device_list},
                   {"variables", variables},
                   {"unknown_variables", unknown}}
                  .dump(2, ' ', false, json::error_handler_t::replace)
                  .c_str());
    return kDone;
  }
  std::printf("%-8s %s\n", "kiln", KILN_VERSION);
  for (const Component& c : components) {
    if (c.available)
      std::printf("%-8s %s%s%s\n", c.name.c_str(), c.version.c_str(), c.detail.empty() ? "" : "  ",
                  c.detail.c_str());
    else
      std::printf("%-8s missing: %s\n", c.name.c_str(), c.problem.c_str());
  }
  for (const DeviceInfo& d : found)
    std::printf("%-8s %s, %s, %d multiprocessors, %.1f GiB\n", d.id.c_str(), d.name.c_str(),
                d.target.arch.c_str(), d.limits.multiprocessors,
                static_cast<double>(d.limits.memory_bytes) / (1 << 30));
  if (found.empty()) std::puts("no device: kernels can be compiled, but not tuned or launched");
  std::puts("");
  for (const Setting& s : held) {
    std::printf("%-24s %-11s %s\n", s.name.c_str(), to_string(s.from), s.value.c_str());
    if (!s.problem.empty()) std::printf("%-24s wrong: %s\n", "", s.problem.c_str());
  }
  for (const std::string& line : unknown) std::puts(line.c_str());
  return kDone;
}

}  // namespace

void add_doctor(CLI::App& app, Context& context) {
  auto* doctor = app.add_subcommand("doctor", "Show what Kiln can use on this machine");
  doctor->add_flag("--json", context.json, "Print JSON");
  doctor->callback([&context] { context.run = [&context] { return run_doctor(context); }; });
}

}  // namespace kiln::tools
