// Where Kiln's own headers and templates are at run time.
//
//   kernel.source.file = kiln::templates_dir() / "rows/rmsnorm.cuh";
#pragma once

#include <filesystem>

#include "kiln/version.hpp"

namespace kiln {

/// The folder that holds `kiln/config.hpp`: below $KILN_ROOT, else of the installation that this
/// library belongs to, wherever that was moved; for a library in its build tree, of the source
/// tree. Kernel sources may include from it.
std::filesystem::path include_dir();

/// The folder of the shipped templates, found in the same order.
std::filesystem::path templates_dir();

}  // namespace kiln
