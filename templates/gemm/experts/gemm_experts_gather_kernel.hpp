// The operation of gemm_experts_gather.hpp for C++ programs.
#pragma once

#include <cstddef>

#include "../peers/gemm_peers_kernel.hpp"
#include "gemm_experts_gather.hpp"

namespace kiln::templates {

/// Bytes of symmetric memory that operations with up to `m` tokens of each rank need. @throws
/// UserError for negative sizes, for more than 2^31 - 1 rows, and for fewer ranks than 1 or more
/// than 64
template <class T>
std::size_t expert_gather_bytes(int m, int k, int top, int ranks);

/// Arguments: C, the rank's tokens, B, the gathered rows (`memory.data()`), tokens, ends, the
/// ranks, m, n, k, groups, top, the number of ranks. T is float, kiln::float16 or kiln::bfloat16.
template <class T>
using ExpertsGatherKernel = Kernel<PeerGemm, ExpertsProblem,
                                   void(T*, const T*, const T*, const T*, const int*, const int*,
                                        const Peers*, int, int, int, int, int, int)>;

/// Tuned with data in `memory`, which must outlive its handles and stay where it is. @throws
/// UserError when it has fewer flags than kExpertFlags
template <class T>
ExpertsGatherKernel<T> experts_gather_kernel(const SymmetricMemory& memory);

template <class T>
class ExpertsGather : public PeerGemmHandle<ExpertsGatherKernel<T>> {
  using Base = PeerGemmHandle<ExpertsGatherKernel<T>>;

 public:
  ExpertsGather(const Runtime& runtime, const SymmetricMemory& memory)
      : Base(runtime, memory, experts_gather_kernel<T>(memory)) {}

  /// Starts the operation on `stream`. @throws UserError when the memory is too small,
  /// or of another number of ranks
  void operator()(Stream stream, T* c, const T* a, const T* b, const int* tokens, const int* ends,
                  const ExpertsProblem& p) const {
    start(nullptr, stream, c, a, b, tokens, ends, p);
  }
  /// The same in a region.
  void operator()(Region& region, Stream stream, T* c, const T* a, const T* b, const int* tokens,
                  const int* ends, const ExpertsProblem& p) const {
    start(&region, stream, c, a, b, tokens, ends, p);
  }

 private:
  void start(Region* region, Stream stream, T* c, const T* a, const T* b, const int* tokens,
             const int* ends, const ExpertsProblem& p) const {
    this->check_memory(expert_gather_bytes<T>(p.m, p.k, p.top, p.ranks), p.ranks);
    this->launch(region, stream, c, a, b, static_cast<const T*>(this->memory_.data()), tokens, ends,
                 this->memory_.peers(), p.m, p.n, p.k, p.groups, p.top, p.ranks);
  }
};

}  // namespace kiln::templates
