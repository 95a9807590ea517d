// The first stage: one instance's source, ready for any compiler of its target.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kiln/key.hpp"

namespace kiln::codegen {

/// A translation unit and the kernels wanted from it. Built by `make_source`; a value type.
struct Source {
  std::string text;                ///< translation unit; may #include files found in `include_dirs`
  std::string path;                ///< name shown in compiler messages, e.g. `gemm.cuh`
  std::string entry;               ///< name expression, e.g. `gemm<Gemm{.block_m=128}, float>`
  std::vector<std::string> steps;  ///< name expressions of further entries, none of them twice
  /// The function type that all entries must have, e.g. `void(float*, const float*, int)`; empty:
  /// unchecked.
  std::string signature;
  std::vector<std::string> include_dirs;
  std::vector<std::string> options;  ///< the kernel author's own compiler options
  std::string label;                 ///< printable instance, e.g. `gemm<float>{block_m=128,...}`
  std::string kernel;                ///< the definition's name
  std::string config;                ///< `block_m=128,...`
  std::vector<std::int64_t> values;  ///< of the parameters, in order
  /// How the parameters are defined before the template, a line each: the beginning of `text`.
  std::vector<std::string> definitions;
  /// Digest over `text` and every file it transitively includes (see include_closure.hpp).
  Digest closure{};
  /// False when some include could not be followed: the binary is then used, but never kept.
  bool cacheable = true;
};

}  // namespace kiln::codegen
