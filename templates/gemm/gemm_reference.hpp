// gemm.hpp's equation on the host, in float with 16 partial sums per element of C.
#pragma once

namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Uses all cores.
template <class T>
void gemm_reference(T* out, const T* a, const T* b, int m, int n, int k);

}  // namespace kiln::templates
