// What a call refuses its caller's mistake with.
#pragma once

#include <functional>
#include <string>

#include "kiln/error.hpp"

namespace kiln::test {

/// The message of the UserError that `call` throws.
inline std::string user_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace kiln::test
