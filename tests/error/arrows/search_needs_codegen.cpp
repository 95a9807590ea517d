// A search knows spaces by their public headers, and no kernels.
#include "codegen/llvm_plugin.hpp"

bool search_needs_codegen() { return kiln::codegen::host_compiler_problem().empty(); }
