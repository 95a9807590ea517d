// How Kiln's own code makes public types from what stands behind them, and finds that again.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "kiln/region.hpp"
#include "kiln/runtime.hpp"
#include "kiln/symbol.hpp"

namespace kiln::detail {

/// A friend of the types below.
struct Access {
  static Runtime runtime(std::shared_ptr<Engine> engine) { return Runtime(std::move(engine)); }
  static const std::shared_ptr<Engine>& engine(const Runtime& runtime) noexcept {
    return runtime.engine_;
  }
  static std::shared_ptr<HandleCore> core(const Runtime& runtime, KernelDefinition kernel) {
    return runtime.core(std::move(kernel));
  }
  static Region region(RegionCore& core, std::shared_ptr<FunctionHandles> functions) {
    return Region(core, std::move(functions));
  }
  static Symbol symbol(std::string name, void* address, std::size_t bytes, void* device,
                       std::shared_ptr<const void> owner) {
    return Symbol(std::move(name), address, bytes, device, std::move(owner));
  }
};

}  // namespace kiln::detail
