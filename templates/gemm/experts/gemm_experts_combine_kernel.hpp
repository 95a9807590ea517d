// The operation of gemm_experts_combine.hpp for C++ programs.
#pragma once

#include <cstddef>

#include "../peers/gemm_peers_kernel.hpp"
#include "gemm_experts_combine.hpp"

namespace kiln::templates {

/// Bytes of symmetric memory that operations with up to `m` tokens of each rank need. @throws
/// UserError for negative sizes, for more than 2^31 - 1 rows, and for fewer ranks than 1 or more
/// than 64
template <class T>
std::size_t expert_combine_bytes(int m, int n, int ranks);

/// Arguments: C, A, B, ends, places, weights, the ranks, m, n, k, groups, top, the number of ranks.
/// T is float, kiln::float16 or kiln::bfloat16.
template <class T>
using ExpertsCombineKernel = Kernel<PeerGemm, ExpertsProblem,
                                    void(T*, const T*, const T*, const int*, const int*,
                                         const float*, const Peers*, int, int, int, int, int, int)>;

/// Tuned with data in `memory`, which must outlive its handles and stay where it is. @throws
/// UserError when it has fewer flags than kExpertFlags
template <class T>
ExpertsCombineKernel<T> experts_combine_kernel(const SymmetricMemory& memory);

template <class T>
class ExpertsCombine : public PeerGemmHandle<ExpertsCombineKernel<T>> {
  using Base = PeerGemmHandle<ExpertsCombineKernel<T>>;

 public:
  ExpertsCombine(const Runtime& runtime, const SymmetricMemory& memory)
      : Base(runtime, memory, experts_combine_kernel<T>(memory)) {}

  /// Starts the operation on `stream`. @throws UserError when the memory is too small,
  /// or of another number of ranks
  void operator()(Stream stream, T* c, const T* a, const T* b, const int* ends, const int* places,
                  const float* weights, const ExpertsProblem& p) const {
    start(nullptr, stream, c, a, b, ends, places, weights, p);
  }
  /// The same in a region.
  void operator()(Region& region, Stream stream, T* c, const T* a, const T* b, const int* ends,
                  const int* places, const float* weights, const ExpertsProblem& p) const {
    start(&region, stream, c, a, b, ends, places, weights, p);
  }

 private:
  void start(Region* region, Stream stream, T* c, const T* a, const T* b, const int* ends,
             const int* places, const float* weights, const ExpertsProblem& p) const {
    this->check_memory(expert_combine_bytes<T>(p.m, p.n, p.ranks), p.ranks);
    this->launch(region, stream, c, a, b, ends, places, weights, this->memory_.peers(), p.m, p.n,
                 p.k, p.groups, p.top, p.ranks);
  }
};

}  // namespace kiln::templates
