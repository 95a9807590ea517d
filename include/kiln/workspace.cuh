// The workspace as a kernel's entry takes it: the last parameter of all entries of configs that
// have one (kiln/workspace.hpp). Every kernel compiler and every program can read this header.
//
//   template <SplitK c, class T>
//   __global__ void gemm(T* out, const T* a, const T* b, int n, kiln::Workspace workspace) {
//     float* partial = static_cast<float*>(workspace.scratch);
#pragma once

namespace kiln {

struct Workspace {
  /// Aligned to 256 bytes. A launch finds anything in it. May be null for a launch that needs no
  /// bytes; after a launch that needed some it is not.
  void* scratch;
  /// 0 when a launch begins, and left 0 by it. May be null for a launch that needs none.
  unsigned* semaphores;
};

}  // namespace kiln
