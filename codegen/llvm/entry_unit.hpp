// The translation unit of one instance: the source followed by the entry the lowering starts from.
#pragma once

#include <string>

#include "codegen/source.hpp"

namespace kiln::codegen::llvm_host {

/// Name of the function that unpacks the arguments and calls the wanted instance. In the unit,
/// those of steps end with `_1`, `_2`, ...
inline constexpr const char* kEntryFunction = "kiln_entry";
/// Name of the array of parameter sizes, in bytes; likewise.
inline constexpr const char* kParameterSizes = "kiln_parameter_sizes";

/// `source.text`, shown in messages under `source.path`, plus the generated entries.
std::string entry_unit(const Source& source);

}  // namespace kiln::codegen::llvm_host
