// What launches one problem of a kernel whose launches are more than its entry with the caller's
// arguments. Implemented by the runtime.
#pragma once

#include "kiln/device.hpp"

namespace kiln::detail {

/// A launch of one problem that is more than its entry with the caller's arguments: tensor maps in
/// the place of pointers, a workspace, steps. Thread-safe.
class BoundLaunch {
 public:
  virtual ~BoundLaunch() = default;
  /// As Launchable::launch. @throws UserError when a pointer is not aligned as maps must be, or
  /// when the stream's workspace is too small and cannot grow; EnvironmentError
  virtual void operator()(const Launch& launch, Stream stream, void** args) const = 0;
  /// The same with an array that nobody reads afterwards, so it may be changed in place of a copy.
  virtual void take(const Launch& launch, Stream stream, void** args) const {
    (*this)(launch, stream, args);
  }
};

}  // namespace kiln::detail
