// The caller's code, called by a bench.
#pragma once

#include <exception>

#include "kiln/error.hpp"

namespace kiln::runtime {

/// Runs the caller's code and turns every exception into an Error.
template <class Work>
auto translated(const Work& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw EnvironmentError(error.what());
  } catch (...) {
    throw EnvironmentError("it threw something that is not a std::exception");
  }
}

}  // namespace kiln::runtime
