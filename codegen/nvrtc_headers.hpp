// Internal: the standard headers that kernels commonly include and NVRTC lacks, given to it in
// memory. Their texts are the files of nvrtc_headers/.
#pragma once

#include <span>

namespace kiln::codegen {

struct NvrtcHeader {
  const char* name;  ///< as included, e.g. `cstdint`
  const char* text;
};

std::span<const NvrtcHeader> nvrtc_headers();

}  // namespace kiln::codegen
