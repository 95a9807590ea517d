// A list of instances: what a run lacked, and what `kiln precompile --manifest` is to make.
//
//   {"format": "kiln manifest", "version": 1, "wanted": [
//     {"kernel": "gemm", "types": ["float"], "target": "sm_90a",
//      "problem": {"m": 64, "n": 512, "k": 1024}, "config": {"block_m": 128, ...}, "launches": 7}]}
//
// `launches` is absent where they were not counted. `config` is absent where the problem has no
// tuning record: then every config that the space allows for it is meant. `types` are spelled as the
// kernel's source does. `choice` in the place of `kernel` names a choice (choice.hpp), all of whose
// alternatives are meant.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kiln/version.hpp"

namespace kiln {

/// One instance, or with an empty config all instances of a problem.
struct WantedInstance {
  std::string kernel;  ///< its name, or that of a choice
  std::vector<std::string> types;
  std::string target;  ///< `sm_90a`, `x86-64-v3`
  std::map<std::string, std::int64_t> problem;
  std::map<std::string, std::int64_t> config;
  /// That found the problem unprepared, on a sealed runtime: the weight of a TuneJob, for example.
  /// 0: not counted.
  std::uint64_t launches = 0;
  bool is_choice = false;  ///< then there is no config

  bool operator==(const WantedInstance&) const = default;
};

/// A value type.
struct Manifest {
  std::vector<WantedInstance> wanted;

  /// @throws UserError naming the file, and what is wrong in it.
  static Manifest read(const std::filesystem::path& file);
  /// Replaces the file as a whole. @throws EnvironmentError.
  void write(const std::filesystem::path& file) const;
};

}  // namespace kiln
