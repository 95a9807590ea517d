// The GPUs that are ranks, and the operations of ranks by each body, in several launches and in
// one.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "peer_turns.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"
#include "temporary_directory.hpp"

namespace kiln::test {

/// The GPUs that are there, at most eight, a rank each. Their contexts stay until the program ends:
/// making one takes longer than most rounds do.
inline std::vector<std::string> gpus() {
  static const runtime::CudaProbe cuda = runtime::probe_cuda();
  static const auto kept = [] {
    std::vector<std::unique_ptr<const runtime::CudaContext>> contexts;
    for (int i = 0; i < std::min(cuda.devices, 8); ++i)
      contexts.push_back(std::make_unique<const runtime::CudaContext>(cuda.driver, i));
    return contexts;
  }();
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kept.size(); ++i) names.push_back("cuda:" + std::to_string(i));
  return names;
}

namespace peer_configs {

using templates::PeerGemm;
using B = templates::GemmBody;
using C = templates::GemmCluster;

inline const std::vector<PeerGemm> kDense{
    {B::mma, 64, 128, 64, 3, 32, 32, 8, 8, C::none, false, false, 1, 0, false},
    {B::tma, 128, 128, 64, 1, 64, 64, 8, 8, C::none, false, false, 1, 0, false},
    {B::tma, 128, 128, 64, 1, 64, 64, 8, 8, C::none, false, true, 1, 0, false},
    {B::tma, 128, 256, 64, 1, 64, 64, 8, 8, C::two_m, false, true, 4, 0, false},
    {B::tma, 256, 128, 64, 1, 128, 64, 8, 4, C::two_n, true, true, 2, 0, false},
    {B::tma, 128, 256, 64, 1, 64, 64, 8, 8, C::two_m, false, true, 4, 8, true},
    {B::pingpong, 128, 128, 64, 1, 128, 64, 8, 8, C::none, false, true, 2, 4, true},
    {B::tma, 128, 128, 64, 1, 64, 64, 8, 8, C::none, false, true, 8, 4, false},
    {B::pingpong, 64, 160, 64, 1, 64, 64, 8, 8, C::none, false, true, 8, 0, false},
    {B::pingpong, 128, 128, 64, 1, 128, 64, 8, 8, C::two_m, true, true, 4, 0, false}};

inline const std::vector<PeerGemm> kExpertGathers{
    {B::mma, 64, 128, 64, 3, 32, 32, 8, 8, C::none, false, false, 1, 0, false},
    {B::tma, 128, 128, 64, 1, 64, 64, 8, 8, C::none, false, false, 1, 0, false},
    {B::tma, 128, 256, 64, 1, 64, 64, 8, 8, C::two_m, false, true, 32, 8, true},
    {B::pingpong, 128, 128, 64, 1, 128, 64, 8, 8, C::none, false, true, 8, 16, false},
    {B::pingpong, 64, 160, 64, 1, 64, 64, 8, 8, C::two_n, true, true, 1, 4, true}};

inline const std::vector<PeerGemm> kExpertCombines{
    {B::mma, 64, 128, 64, 3, 32, 32, 8, 8, C::none, false, false, 1, 0, false},
    {B::tma, 128, 128, 64, 1, 64, 64, 8, 8, C::none, false, false, 1, 0, false},
    {B::tma, 128, 256, 64, 1, 64, 64, 8, 8, C::two_m, false, true, 1, 0, false},
    {B::tma, 128, 128, 64, 1, 64, 64, 8, 8, C::two_n, true, true, 2, 16, false},
    {B::pingpong, 128, 64, 64, 1, 128, 64, 8, 8, C::none, false, true, 4, 8, false},
    {B::pingpong, 64, 64, 64, 1, 64, 64, 8, 8, C::two_m, false, true, 8, 32, false}};

}  // namespace peer_configs

/// The kernels that a program's cases compile, each once for all ranks and cases.
inline const std::filesystem::path& store_of_program() {
  static const TemporaryDirectory folder;
  static const std::filesystem::path store = folder.path() / "store";
  return store;
}

/// The GEMMs of ranks by every body.
inline std::vector<Turns<bfloat16>> every_gemm(int m, int n, int k) {
  std::vector<Turns<bfloat16>> all;
  for (std::size_t i = 0; i < peer_configs::kDense.size(); ++i) {
    const templates::PeerGemm* const config = &peer_configs::kDense[i];
    all.push_back(gemm_turns<bfloat16>({m, n, k, static_cast<int>(gpus().size())}, config, config));
    all.back().store = store_of_program();
  }
  return all;
}
/// Those of experts by every body.
inline std::vector<Turns<bfloat16>> every_experts(const templates::ExpertsProblem& p,
                                                  Routing routing) {
  using peer_configs::kExpertCombines, peer_configs::kExpertGathers;
  std::vector<Turns<bfloat16>> all;
  for (std::size_t i = 0; i < std::max(kExpertGathers.size(), kExpertCombines.size()); ++i) {
    all.push_back(experts_turns<bfloat16>(p, routing, &kExpertGathers[i % kExpertGathers.size()],
                                          &kExpertCombines[i % kExpertCombines.size()]));
    all.back().store = store_of_program();
  }
  return all;
}
}  // namespace kiln::test
