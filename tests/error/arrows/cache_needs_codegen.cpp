// The cache knows nothing of kernels, nor of where their sources lie.
#include "kiln/paths.hpp"

std::filesystem::path needs_codegen() { return kiln::templates_dir(); }
