// What the libraries that Python programs load share.
#pragma once

#include <exception>
#include <string>

#include "kiln/runtime.hpp"

namespace for_python {

inline kiln::RuntimeOptions options_of(kiln::Mode mode) {
  kiln::RuntimeOptions options;
  options.device = "cuda:0";
  options.store.disk = false;
  options.mode = mode;
  return options;
}

/// 0, or 1 when `work` has thrown, and `failure` says what.
template <class F>
int attempt(std::string& failure, F&& work) {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    failure = error.what();
    return 1;
  }
}

}  // namespace for_python
