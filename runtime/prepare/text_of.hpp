// What a preparation reports of a failure.
#pragma once

#include <exception>
#include <string>

#include "runtime/device/device.hpp"
#include "runtime/support/foreign_exception.hpp"

namespace kiln::runtime {

/// @throws DeviceLost
inline std::string text_of(const std::exception_ptr& failure) try {
  std::rethrow_exception(failure);
} catch (const DeviceLost&) {
  throw;
} catch (const std::exception& error) {
  return error.what();
} catch (...) {
  return kForeignException;
}

}  // namespace kiln::runtime
