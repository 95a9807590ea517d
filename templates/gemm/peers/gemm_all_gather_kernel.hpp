// The operation of gemm_all_gather.hpp for C++ programs.
#pragma once

#include <cstddef>

#include "gemm_all_gather.hpp"
#include "gemm_peers_kernel.hpp"

namespace kiln::templates {

/// Bytes of symmetric memory that operations with up to `m` rows of each rank need. @throws
/// UserError for negative sizes, for more than 2^31 - 1 rows, and for fewer ranks than 1 or more
/// than 64
template <class T>
std::size_t all_gather_bytes(int m, int k, int ranks);

/// Arguments: C, A as it is multiplied, B, the gathered A (`memory.data()`), A as it is sent (the
/// same pointer), the ranks, m, n, k, the number of ranks. T is float, kiln::float16 or
/// kiln::bfloat16.
template <class T>
using AllGatherGemmKernel =
    Kernel<PeerGemm, PeerGemmProblem,
           void(T*, const T*, const T*, const T*, const T*, const Peers*, int, int, int, int)>;

/// Tuned with data in `memory`, which must outlive its handles and stay where it is. @throws
/// UserError when it has fewer flags than kPeerGemmFlags
template <class T>
AllGatherGemmKernel<T> all_gather_gemm_kernel(const SymmetricMemory& memory);

template <class T>
class AllGatherGemm : public PeerGemmHandle<AllGatherGemmKernel<T>> {
  using Base = PeerGemmHandle<AllGatherGemmKernel<T>>;

 public:
  AllGatherGemm(const Runtime& runtime, const SymmetricMemory& memory)
      : Base(runtime, memory, all_gather_gemm_kernel<T>(memory)) {}

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
    this->check_memory(all_gather_bytes<T>(m, k, this->memory_.size()), this->memory_.size());
    this->launch(region, stream, c, a, b, static_cast<const T*>(this->memory_.data()), a,
                 this->memory_.peers(), m, n, k, this->memory_.size());
  }
};

}  // namespace kiln::templates
