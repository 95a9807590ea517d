// Kernels that define what is right for those that communicate (gemm_peers_reference.cuh).
#pragma once

#include <algorithm>
#include <string>

#include "templates/gemm/gemm_host.hpp"
#include "templates/gemm/peers/gemm_peers_space.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

/// A reference is a kernel that takes the same arguments and communicates with nobody: else a rank
/// would wait in it for others that cannot make their data, or have trusted theirs before.
template <class Kernel>
struct PeerReference;
template <class Problem, class... Args>
struct PeerReference<Kernel<PeerGemm, Problem, void(Args...)>> {
  using Type = Kernel<Gemm, Problem, void(Args...)>;
};
/// Launches that make or add elements, at least one block.
inline Launch reference_launch(double elements, const DeviceLimits& d) {
  constexpr unsigned kThreads = 256;
  const double most = 8.0 * std::max(1, d.usable_multiprocessors());
  return {{static_cast<unsigned>(std::clamp(elements / kThreads, 1.0, most))}, {kThreads}};
}
/// Its GEMM is the space's default, without tensor maps. The rest is for each to fill in.
template <class T, class Type>
auto peer_reference(const char* file, const char* entry,
                    const Space<Gemm, typename Type::ProblemType>& space) {
  typename PeerReference<Type>::Type kernel{.space = space};
  kernel.name = entry;
  kernel.source = {.file = templates_dir() / file};
  kernel.entry = std::string("kiln::templates::") + entry;
  kernel.config_type = "kiln::templates::Gemm";
  kernel.types = {device_name<T>()};
  return kernel;
}

/// The values that defaults have, on a GPU and on the host.
template <class T, class Problem>
constexpr Space<Gemm, Problem> reference_values() {
  return gemm_values<T, Problem>()
      .values(&Gemm::block_m, {16, 64})
      .values(&Gemm::block_n, {32, 64, 128})
      .values(&Gemm::block_k, {32, 64, 256})
      .values(&Gemm::stages, {1, 2, 3});
}

template <class T>
auto peer_gemm_reference_space() {
  return reference_values<T, PeerGemmProblem>().where(
      "the GEMM can compute the rows of all ranks",
      [](const Gemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
        return is_a_gemm<T>(c, p, d);
      });
}

}  // namespace kiln::templates
