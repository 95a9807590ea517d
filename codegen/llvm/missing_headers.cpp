#include "codegen/llvm/missing_headers.hpp"

namespace kiln::codegen::llvm_host {
namespace {

struct Known {
  std::string_view name;  ///< of a header, or of a folder if it ends in a slash
  std::string_view advice;
};

// The first that fits is used. docs/headers.md has the same list.
constexpr Known kKnown[] = {
    {"mma.h", "keep tensor core code behind #ifndef KILN_HOST_TARGET, and loop over the tile here"},
    {"cuda_fp6.h", "compute in __half, __nv_bfloat16 or float"},
    {"cuda_fp4.h", "compute in __half, __nv_bfloat16 or float"},
    {"cuComplex.h", "use cuda::std::complex of <cuda/std/complex>"},
    {"cuda/atomic", "use atomicAdd() and the other atomic functions"},
    {"cuda/std/atomic", "use atomicAdd() and the other atomic functions"},
    {"cuda/barrier", "use __syncthreads() or a group's sync()"},
    {"cuda/std/barrier", "use __syncthreads() or a group's sync()"},
    {"cuda/pipeline", "use <cuda_pipeline.h> or <cooperative_groups/memcpy_async.h>"},
    {"cuda/std/", "it has the part of the library that docs/headers.md lists"},
    {"cuda/", "of CUDA's C++ library it has the part of cuda/std that docs/headers.md lists"},
    {"cub/", "write the block's reduction or scan with <cooperative_groups/reduce.h> or scan.h"},
    {"thrust/", "call Thrust from the program, not from kernels"},
    {"curand_kernel.h", "compute random numbers with a generator in the kernel's own source"},
};

bool fits(std::string_view header, std::string_view name) {
  if (name.back() != '/') return header == name;
  // CUDA's C++ library has no endings; an author's own folder `cuda` may hold anything else.
  const bool is_own = name == "cuda/" && header.find('.') != std::string_view::npos;
  return header.substr(0, name.size()) == name && !is_own;
}

}  // namespace

std::string explain_missing_header(std::string_view path, std::string_view log) {
  const std::size_t end = log.find("' file not found");
  if (end == std::string_view::npos) return {};
  const std::size_t quote = log.rfind('\'', end - 1);
  if (quote == std::string_view::npos) return {};
  const std::string_view header = log.substr(quote + 1, end - quote - 1);
  for (const Known& known : kKnown) {
    if (!fits(header, known.name)) continue;
    std::string line(path);
    line.append(": note: the host target has no ").append(header).append(": ");
    line.append(known.advice).append(". See docs/headers.md.\n");
    return line;
  }
  return {};
}

}  // namespace kiln::codegen::llvm_host
