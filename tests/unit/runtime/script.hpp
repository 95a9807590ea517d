// What the instances of a fake kernel do, as a test says.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "codegen/binary.hpp"

namespace kiln::test {

/// What an instance does. `x` is the value of the fake kernel's first parameter.
struct Behaviour {
  double seconds = 1e-3;                 ///< per launch, by the fake clock
  std::function<void(void** args)> run;  ///< empty: computes the right result
  /// Global variables, as the source initialises them: each module has its own.
  std::map<std::string, std::vector<std::byte>> variables;
  /// Instead of `run`, with this module's variables.
  std::function<void(void** args, std::map<std::string, std::vector<std::byte>>&)> run_with;
  std::string compile_log;               ///< not empty: does not compile
  std::string warnings;                  ///< of the compiler, where it compiles
  std::string load_error, launch_error;  ///< not empty: thrown
  int fails_after = 0;                   ///< launches that work before `launch_error`
  codegen::ResourceUsage resources;
  int occupancy = 1;
};

/// Entry text to behaviour; shared by the compiler and the device of one test.
class Script {
 public:
  Behaviour& operator[](const std::string& entry) {
    std::lock_guard lock(mutex_);
    return behaviours_[entry];
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Behaviour> behaviours_;
};

}  // namespace kiln::test
