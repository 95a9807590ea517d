// What this machine offers Kiln: what `kiln doctor` shows.
//
//   for (auto& c : kiln::diagnose()) std::cout << c.name << ": " << c.version << c.problem << "\n";
#pragma once

#include <string>
#include <vector>

#include "kiln/device.hpp"
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

/// The devices that `RuntimeOptions::device` may name, best first.
std::vector<DeviceInfo> devices();

}  // namespace kiln
