// What this machine offers Kiln: what `kiln doctor` shows.
//
//   for (auto& c : kiln::diagnose()) std::cout << c.name << ": " << c.version << c.problem << "\n";
#pragma once

#include <string>
#include <vector>

#include "kiln/device.hpp"
#include "kiln/runtime.hpp"
#include "kiln/store.hpp"

namespace kiln {

/// One thing Kiln can use. Nothing here is required for everything else.
struct Component {
  std::string name;  ///< `driver`, `nvrtc`, `llvm`, `compile`, `store`
  bool available = false;
  std::string version{};  ///< when available
  std::string detail{};   ///< where it was found
  std::string problem{};  ///< when unavailable: what is missing, and what to do
};

/// Looks at the machine and changes nothing. Throws nothing but std::bad_alloc.
std::vector<Component> diagnose(const StoreOptions& store = {});

/// One of Kiln's variables, and what holds.
struct Setting {
  enum class From { defaults, environment, option };

  std::string name;   ///< `KILN_MODE`
  std::string value;  ///< in effect; for defaults in words
  From from = From::defaults;
  std::string problem{};  ///< why a runtime would refuse the value
};
const char* to_string(Setting::From from) noexcept;

/// Every variable of Kiln's, in the order of docs/reference.md, for a runtime with these options.
std::vector<Setting> settings(const RuntimeOptions& options = {});

/// One line for each variable of the environment that begins with `KILN_` and that Kiln does not
/// know, with the nearest name that it knows.
std::vector<std::string> unknown_variables();

/// The devices that `RuntimeOptions::device` may name, best first.
std::vector<DeviceInfo> devices();

}  // namespace kiln
