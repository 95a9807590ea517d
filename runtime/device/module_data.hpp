// The global variables of a loaded kernel: found by name, filled with what a workload has for them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/definition.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// The variable that `name` means: its whole name, or the end of just one (`filter` for
/// `image::filter`). @throws UserError that says which there are
ModuleVariable find_variable(const Device& device, const Module& kernel, std::string_view name);

/// @throws UserError naming both sizes where they differ
void check_size(const ModuleVariable& variable, std::span<const std::byte> data);

/// Replaces all of a variable. Waits for the device. @throws UserError naming both sizes where they
/// differ
void write_variable(Device& device, const ModuleVariable& variable,
                    std::span<const std::byte> data);

/// All of what a global variable is to hold.
struct VariableData {
  std::string name;
  std::vector<std::byte> bytes;
};

/// What a workload has for the variables of one module, and whether the kernel leaves them alone.
/// Not thread-safe.
class ModuleData {
 public:
  /// Null where the workload has no variables. @throws UserError where the module has no such
  /// variable, or one of another size
  static std::shared_ptr<ModuleData> of(std::span<const VariableData> variables,
                                        std::shared_ptr<Device> device,
                                        std::shared_ptr<const Module> kernel);

  /// Waits for the device.
  void fill();
  /// Looks whether the launches since fill() have changed anything; they must have ended.
  void look_for_changes();
  /// Whether they ever have: then each launch needs a fill() before it.
  bool changes() const noexcept { return changes_; }

 private:
  struct Filled {
    ModuleVariable variable;
    std::vector<std::byte> data;
  };

  ModuleData(std::shared_ptr<Device> device, std::shared_ptr<const Module> kernel)
      : device_(std::move(device)), kernel_(std::move(kernel)) {}

  std::shared_ptr<Device> device_;
  std::shared_ptr<const Module> kernel_;
  std::vector<Filled> filled_;
  bool changes_ = false;
};

}  // namespace kiln::runtime
