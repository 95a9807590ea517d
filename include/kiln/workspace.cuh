// The workspace as a kernel's entry takes it: the last parameter of all entries of configs that have
// one (kiln/workspace.hpp). Every kernel compiler and every program can read this header.
//
//   template <SplitK c, class T>
//   __global__ void gemm(T* out, const T* a, const T* b, int n, kiln::Workspace workspace) {
//     float* partial = static_cast<float*>(workspace.scratch);
#pragma once

namespace kiln {

struct Workspace {
  void*
      scratch;  ///< aligned to 256 bytes; a launch finds anything in it; null where it has no bytes
  unsigned* semaphores;  ///< 0 when a launch begins, and left 0 by it; null where there are none
};

}  // namespace kiln
