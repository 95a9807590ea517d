// kiln::precompile with compilers of the caller's choice.
#pragma once

#include "kiln/precompile.hpp"
#include "runtime/build/builder.hpp"

namespace kiln::runtime {

/// As kiln::precompile. `make_compiler` @throws EnvironmentError for a kind that it has none for.
PrecompileReport precompile(const std::vector<PrecompileJob>& jobs,
                            const std::filesystem::path& output, const PrecompileOptions& options,
                            Builder::MakeCompiler make_compiler);

}  // namespace kiln::runtime
