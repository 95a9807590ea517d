// How Kiln's own code makes public types from what stands behind them, and finds that again.
#pragma once

#include <memory>
#include <utility>

#include "kiln/region.hpp"
#include "kiln/runtime.hpp"

namespace kiln::detail {

/// A friend of the types below.
struct Access {
  static Runtime runtime(std::shared_ptr<Engine> engine) { return Runtime(std::move(engine)); }
  static const std::shared_ptr<Engine>& engine(const Runtime& runtime) noexcept {
    return runtime.engine_;
  }
  static Region region(RegionCore& core, std::shared_ptr<FunctionHandles> functions) {
    return Region(core, std::move(functions));
  }
};

}  // namespace kiln::detail
