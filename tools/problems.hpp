// Problems as they are named on the command line and in files.
//
//   --problem rows=512,hidden=4096
//   --problems FILE: [{"kernel": "rmsnorm", "types": "bf16", "problem": {"rows": 512, ...},
//                      "devices": ["host", "cuda"], "weight": 32}, ...]
//   "choice" in the place of "kernel" names a registered choice
//   types, devices and weight (how often it is launched) may be left out
//   --problems FILE: a manifest (kiln/manifest.hpp), whose launches are weights
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kiln/registry.hpp"
#include "kiln/target.hpp"

namespace kiln::tools {

/// `rows=512,hidden=4096`; nothing for an empty text. @throws UserError naming `option` and what is
/// wrong in it.
std::map<std::string, std::int64_t> parse_fields(const std::string& option,
                                                 const std::string& text);

/// One kernel, or one choice, and one problem of it.
struct NamedProblem {
  KernelDefinition kernel;  ///< of a choice: its operation, with its name and types
  Values problem;
  std::vector<std::string> devices;  ///< kinds, `host` or `cuda`; empty: any
  double weight = 0;                 ///< launches, against the others'; 0 for all: not known
  std::optional<kiln::detail::ChoiceDescription> choice{};

  bool meant_for(Target::Kind kind) const;
};

/// `text`: as for parse_fields. @throws UserError naming what is wrong in it.
NamedProblem named_problem(const Registry& registry, const std::string& kernel,
                           const std::string& types, const std::string& text);
/// The problems of the kernels in `only`; all problems if that is empty. @throws UserError naming
/// the file, the entry, which are counted from 1, and what is wrong in it, or a kernel in `only`
/// that the file does not have.
std::vector<NamedProblem> read_problems(const std::string& file, const Registry& registry,
                                        const std::vector<std::string>& only = {});
/// `rows=N,hidden=N`, for messages.
std::string wanted_fields(const KernelDefinition& kernel);

}  // namespace kiln::tools
