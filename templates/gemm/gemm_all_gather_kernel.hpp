// The operation of gemm_all_gather.hpp for C++ programs.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "gemm_all_gather.hpp"
#include "kiln/communicator.hpp"
#include "kiln/kernel.hpp"
#include "kiln/runtime.hpp"
#include "kiln/symmetric.hpp"

namespace kiln::templates {

/// Of A of all ranks, with as many rows as `m` is tuned as. @throws UserError for negative sizes, and
/// for fewer ranks than 1 or more than 64
std::size_t gathered_elements(int m, int k, int ranks);

/// Bytes of symmetric memory that operations with up to `m` rows of each rank need.
template <class T>
std::size_t all_gather_bytes(int m, int k, int ranks) {
  return sizeof(T) * gathered_elements(m, k, ranks);
}

/// Arguments: C, A as it is multiplied, B, the gathered A (`memory.data()`), A as it is sent (the same
/// pointer), the ranks, m, n, k, the number of ranks. T is float, kiln::float16 or kiln::bfloat16.
template <class T>
using AllGatherGemmKernel =
    Kernel<AllGather, AllGatherProblem,
           void(T*, const T*, const T*, const T*, const T*, const Peers*, int, int, int, int)>;

/// Tuned with data in `memory`, which must outlive its handles.
template <class T>
AllGatherGemmKernel<T> all_gather_gemm_kernel(const SymmetricMemory& memory);

/// A rank's end of the operation. Thread safety: one call at a time.
template <class T>
class AllGatherGemm {
 public:
  /// `memory` must outlive this. A launch must not tune by itself, because the other ranks would not
  /// do the same: the runtime's mode is one that does not, or its options name the ranks, in step.
  AllGatherGemm(const Runtime& runtime, const SymmetricMemory& memory)
      : memory_(memory), handle_(runtime.tuned(all_gather_gemm_kernel<T>(memory))) {}

  /// Starts the operation on `stream`. @throws UserError when `memory` is too small
  void operator()(Stream stream, T* c, const T* a, const T* b, int m, int n, int k) const {
    if (all_gather_bytes<T>(m, k, memory_.size()) > memory_.bytes())
      throw UserError("all-gather + GEMM: the symmetric memory is too small");
    handle_(stream, c, a, b, static_cast<const T*>(memory_.data()), a, memory_.peers(), m, n, k,
            memory_.size());
  }
  /// Collective over `ranks`, which are those of `memory`, in step.
  TuneResult tune(int m, int n, int k, std::shared_ptr<Communicator> ranks,
                  TuneOptions options = {}) const {
    options.ranks = std::move(ranks);
    options.together.lockstep = true;
    return handle_.tune({m, n, k, memory_.size()}, options);
  }
  const auto& handle() const { return handle_; }

 private:
  template <class Kernel>
  struct TunedAs;
  template <class... Args>
  struct TunedAs<Kernel<AllGather, AllGatherProblem, void(Args...)>> {
    using Type = Tuned<AllGather, AllGatherProblem, void(Args...)>;
  };

  const SymmetricMemory& memory_;
  typename TunedAs<AllGatherGemmKernel<T>>::Type handle_;
};

}  // namespace kiln::templates
