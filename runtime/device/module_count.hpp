// How many modules are loaded on a device.
#pragma once

#include <atomic>
#include <cstdint>

namespace kiln::runtime {

/// Modules that load_counted() (loaded_modules.hpp) has loaded and that are still there.
struct LoadedModules {
  std::atomic<std::int64_t> modules{0}, bytes{0};
};

}  // namespace kiln::runtime
