#include "runtime/device/module_data.hpp"

#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "kiln/symbol.hpp"

namespace kiln {

namespace runtime {

using kiln::detail::format;

namespace {

std::string list_variables(std::span<const ModuleVariable> variables) {
  std::string text;
  for (const ModuleVariable& v : variables)
    text += format("{}`{}` ({} bytes)", text.empty() ? "" : ", ", v.name, v.bytes);
  return text;
}

}  // namespace

ModuleVariable find_variable(const Device& device, const Module& kernel, std::string_view name) {
  const std::vector<ModuleVariable> there = device.variables(kernel);
  std::vector<ModuleVariable> ends;
  const std::string end = "::" + std::string(name);
  for (const ModuleVariable& variable : there) {
    if (variable.name == name) return variable;
    if (variable.name.ends_with(end)) ends.push_back(variable);
  }
  if (ends.size() == 1) return ends.front();
  if (ends.size() > 1)
    throw UserError(format("`{}` is ambiguous, it may be any of {}: give its namespace", name,
                           list_variables(ends)));
  throw UserError(
      there.empty()
          ? format("the kernel has no global variable `{}`, nor does it have any other", name)
          : format("the kernel has no global variable `{}`; it has {}", name,
                   list_variables(there)));
}

void check_size(const ModuleVariable& variable, std::span<const std::byte> data) {
  if (data.size() != variable.bytes)
    throw UserError(
        format("the kernel's global variable `{}` has {} bytes, but the data for it has {}",
               variable.name, variable.bytes, data.size()));
}

void write_variable(Device& device, const ModuleVariable& variable,
                    std::span<const std::byte> data) {
  check_size(variable, data);
  if (!data.empty()) device.copy_to_device(variable.address, data.data(), data.size());
}

std::shared_ptr<ModuleData> ModuleData::of(std::span<const VariableData> variables,
                                           std::shared_ptr<Device> device,
                                           std::shared_ptr<const Module> kernel) {
  if (variables.empty()) return nullptr;
  const std::shared_ptr<ModuleData> data(new ModuleData(std::move(device), std::move(kernel)));
  for (const VariableData& variable : variables)
    data->filled_.push_back(
        {find_variable(*data->device_, *data->kernel_, variable.name), variable.bytes});
  data->fill();
  return data;
}

void ModuleData::fill() {
  for (const Filled& filled : filled_) write_variable(*device_, filled.variable, filled.data);
}

void ModuleData::look_for_changes() {
  std::vector<std::byte> got;
  for (const Filled& filled : filled_) {
    if (changes_ || filled.data.empty()) continue;
    got.resize(filled.data.size());
    device_->copy_to_host(got.data(), filled.variable.address, got.size());
    changes_ = got != filled.data;
  }
}

}  // namespace runtime

void Symbol::write_bytes(std::span<const std::byte> data) const {
  runtime::write_variable(*static_cast<runtime::Device*>(device_), {name_, address_, bytes_}, data);
}

}  // namespace kiln
