// Kernel + config + target -> source -> key: everything before a compiler is asked.
#pragma once

#include <cstdint>
#include <span>

#include "codegen/compiler.hpp"
#include "codegen/include_closure.hpp"
#include "codegen/source.hpp"
#include "kiln/definition.hpp"

namespace kiln::codegen {

/// The source of one instance for one compiler. Reads the template and follows its includes.
/// @throws UserError when the template file cannot be read.
Source make_source(const KernelDefinition& kernel, std::span<const std::int64_t> config,
                   const Target& target, const Compiler& compiler, IncludeCache& cache);

/// The key of the binary that `compiler` makes of `source`.
Key binary_key(const Source& source, const Target& target, const Compiler& compiler);

/// Printable instance: `gemm<float>{block_m=128,...}`.
std::string describe_instance(const KernelDefinition& kernel, std::span<const std::int64_t> config);

}  // namespace kiln::codegen
