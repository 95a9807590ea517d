// Functions with knobs as a region launches them: a launch is a call.
#pragma once

#include <map>
#include <memory>

#include "kiln/detail/function_core.hpp"
#include "kiln/handle.hpp"

namespace kiln::detail {

/// Not thread-safe. A launch's only argument is a callable of type
/// `std::function<void(std::span<const std::int64_t> knobs, Stream)>`.
class FunctionHandles {
 public:
  /// Always the same for a function.
  TunableHandle& of(const std::shared_ptr<FunctionCore>& function);

 private:
  std::map<const FunctionCore*, std::shared_ptr<TunableHandle>> handles_;
};

}  // namespace kiln::detail
