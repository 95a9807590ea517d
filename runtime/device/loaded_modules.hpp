// Loading modules so that they are counted for as long as they stay loaded.
#pragma once

#include <memory>
#include <span>

#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// As Device::load.
inline std::shared_ptr<Module> load_counted(Device& device, const codegen::Binary& binary,
                                            const Launch& launch,
                                            std::span<const Launch> steps = {}) {
  struct Counted {
    std::shared_ptr<LoadedModules> among;
    std::int64_t bytes;
    std::shared_ptr<Module> module;

    Counted(std::shared_ptr<LoadedModules> modules, std::size_t size,
            std::shared_ptr<Module> loaded)
        : among(std::move(modules)),
          bytes(static_cast<std::int64_t>(size)),
          module(std::move(loaded)) {
      ++among->modules;
      among->bytes += bytes;
    }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    ~Counted() {
      module.reset();
      --among->modules;
      among->bytes -= bytes;
    }
  };
  const auto counted = std::make_shared<Counted>(device.loaded_modules(), binary.code.size(),
                                                 device.load(binary, launch, steps));
  counted->module->binary_key = binary.key;
  return {counted, counted->module.get()};
}

}  // namespace kiln::runtime
