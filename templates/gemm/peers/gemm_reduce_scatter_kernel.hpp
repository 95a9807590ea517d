// The operation of gemm_reduce_scatter.hpp for C++ programs.
#pragma once

#include <cstddef>

#include "gemm_peers_kernel.hpp"
#include "gemm_reduce_scatter.hpp"

namespace kiln::templates {

/// Bytes of symmetric memory that operations with up to `m` rows of each rank need. @throws
/// UserError for negative sizes, for more than 2^31 - 1 rows, and for fewer ranks than 1 or more
/// than 64
template <class T>
std::size_t reduce_scatter_bytes(int m, int n, int ranks);

/// Arguments: C, A, B, the sums that ranks share (`memory.data()`), the ranks, m, n, k, the number
/// of ranks. T is float, kiln::float16 or kiln::bfloat16.
template <class T>
using ReduceScatterGemmKernel =
    Kernel<PeerGemm, PeerGemmProblem,
           void(T*, const T*, const T*, T*, const Peers*, int, int, int, int)>;

/// Tuned with data in `memory`, which must outlive its handles and stay where it is. @throws
/// UserError when it has fewer flags than kPeerGemmFlags
template <class T>
ReduceScatterGemmKernel<T> reduce_scatter_gemm_kernel(const SymmetricMemory& memory);

template <class T>
class ReduceScatterGemm : public PeerGemmHandle<ReduceScatterGemmKernel<T>> {
  using Base = PeerGemmHandle<ReduceScatterGemmKernel<T>>;

 public:
  ReduceScatterGemm(const Runtime& runtime, const SymmetricMemory& memory)
      : Base(runtime, memory, reduce_scatter_gemm_kernel<T>(memory)) {}

  /// Starts the operation on `stream`. @throws UserError when the memory is too small
  void operator()(Stream stream, T* c, const T* a, const T* b, int m, int n, int k) const {
    start(nullptr, stream, c, a, b, m, n, k);
  }
  /// The same in a region.
  void operator()(Region& region, Stream stream, T* c, const T* a, const T* b, int m, int n,
                  int k) const {
    start(&region, stream, c, a, b, m, n, k);
  }

 private:
  void start(Region* region, Stream stream, T* c, const T* a, const T* b, int m, int n,
             int k) const {
    this->check_memory(reduce_scatter_bytes<T>(m, n, this->memory_.size()), this->memory_.size());
    this->launch(region, stream, c, a, b, static_cast<T*>(this->memory_.data()),
                 this->memory_.peers(), m, n, k, this->memory_.size());
  }
};

}  // namespace kiln::templates
