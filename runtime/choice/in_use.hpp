// What launches of a choice's problem use.
#pragma once

#include <memory>
#include <string>

#include "kiln/detail/handle_core.hpp"
#include "runtime/choice/contender.hpp"

namespace kiln::runtime {

/// Behind a Launchable.
struct InUse {
  std::shared_ptr<const ChoiceCall> call;
  std::string name, text;  ///< as ChosenAlternative
  /// It is used because another one could not be made ready, which may be possible later.
  bool provisional = false;
};

inline const InUse& in_use_of(const detail::Launchable& launchable) {
  return *static_cast<const InUse*>(launchable.loaded);
}

}  // namespace kiln::runtime
