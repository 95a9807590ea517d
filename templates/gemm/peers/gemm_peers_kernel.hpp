// A rank's end of an operation of several ranks, for C++ programs.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "gemm_peers.hpp"
#include "kiln/communicator.hpp"
#include "kiln/error.hpp"
#include "kiln/kernel.hpp"
#include "kiln/region.hpp"
#include "kiln/runtime.hpp"
#include "kiln/symmetric.hpp"

namespace kiln::templates {

/// What operations do alike. Thread safety: one call at a time.
template <class Kernel>
class PeerGemmHandle;
template <class Problem, class... Args>
class PeerGemmHandle<Kernel<PeerGemm, Problem, void(Args...)>> {
 public:
  using KernelType = Kernel<PeerGemm, Problem, void(Args...)>;

  /// `memory` must outlive this, and stay where it is. A launch must not tune by itself, because the
  /// other ranks would not do the same: the runtime's mode is one that does not, or its options name
  /// the ranks, in step, and a guard of this memory. (One that finds the memory when it is called:
  /// the memory is made after the runtime.) Without a guard nothing ends candidates that hang in
  /// this process.
  PeerGemmHandle(const Runtime& runtime, const SymmetricMemory& memory, const KernelType& kernel)
      : memory_(memory), handle_(runtime.tuned(kernel)) {}

  /// Collective over `ranks`, which are those of the memory, in step. A candidate whose kernels
  /// still wait for each other after `candidate_seconds`, for all of its launches, is ended on all
  /// ranks, and is `hung` (SymmetricMemory::guard). @pre no operation of the memory is running
  TuneResult tune(const Problem& problem, std::shared_ptr<Communicator> ranks,
                  TuneOptions options = {}) const {
    options.ranks = std::move(ranks);
    options.together.lockstep = true;
    if (!options.together.guard) options.together.guard = memory_.guard(options.candidate_seconds);
    return handle_.tune(problem, options);
  }
  /// The same for m rows of each rank.
  TuneResult tune(int m, int n, int k, std::shared_ptr<Communicator> ranks,
                  TuneOptions options = {}) const
    requires std::is_same_v<Problem, PeerGemmProblem>
  {
    return tune({m, n, k, memory_.size()}, std::move(ranks), std::move(options));
  }
  const Tuned<PeerGemm, Problem, void(Args...)>& handle() const { return handle_; }

 protected:
  /// @throws UserError when the memory's kernels would reach beyond it
  void check_memory(std::size_t bytes, int ranks) const {
    if (ranks != memory_.size())
      throw UserError("a GEMM of ranks: `ranks` is not the symmetric memory's number");
    if (bytes > memory_.bytes())
      throw UserError("a GEMM of ranks: the symmetric memory is too small");
  }

  /// Launches it, through the region if there is one.
  template <class... Actual>
  void launch(Region* region, Stream stream, Actual... args) const {
    if (region)
      (*region)(handle_, stream, args...);
    else
      handle_(stream, args...);
  }

  const SymmetricMemory& memory_;
  Tuned<PeerGemm, Problem, void(Args...)> handle_;
};

}  // namespace kiln::templates
