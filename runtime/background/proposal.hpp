// What the background proposes to put in use.
#pragma once

#include <memory>

#include "runtime/serve/served_handle.hpp"

namespace kiln::runtime {

/// What was found for a problem, loaded, but not in use yet.
struct Proposal {
  std::weak_ptr<ServedHandle> handle;
  const void* place = nullptr;  ///< of the handle, to compare
  detail::Launchable launchable;
  /// What was in use when it was decided to publish this: another choice made since then stays.
  detail::Ready seen{};
};

}  // namespace kiln::runtime
