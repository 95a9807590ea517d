// What tests of GEMMs of ranks on the host share: ranks, and how the bodies for Hopper are
// emulated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gemm_tma_test.hpp"
#include "peer_gemm_test.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/tune/candidate_list.hpp"

namespace kiln::test {

inline std::vector<std::string> hosts(int ranks) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks), "host");
}

/// The config of one launch as an expression in a kernel's source.
inline std::string text_of(const templates::PeerGemm& c) {
  std::string text =
      "kiln::templates::PeerGemm{kiln::templates::GemmBody(" + std::to_string(int(c.body)) + ")";
  for (int value :
       {c.block_m, c.block_n, c.block_k, c.stages, c.tile_m, c.tile_n, c.vector, c.group_m})
    text += ", " + std::to_string(value);
  return text + ", kiln::templates::GemmCluster(" + std::to_string(int(c.cluster)) + "), " +
         (c.along_n ? "true" : "false") + ", true, " + std::to_string(c.chunks) + ", " +
         std::to_string(c.senders) + (c.late ? ", true}" : ", false}");
}

/// A map of a bf16 array, in boxes of `columns` x `rows`.
inline host_test::HostTensorMap map_of(const void* array, const std::vector<int>& sizes,
                                       int columns, int rows, int span = 128) {
  std::vector<std::uint64_t> size(sizes.begin(), sizes.end());
  return host_test::tensor_map(array, host_test::HostElement::bf16, size,
                               {unsigned(columns), unsigned(std::min(rows, sizes[1])), 1},
                               unsigned(span));
}

/// Ranks on a Hopper measure candidates of one launch and of several, and tell them apart, so that
/// the best of each kind is in the finals.
inline void check_kinds(const KernelDefinition& definition, const Values& problem,
                        const DeviceLimits& hopper, Findings& findings) {
  DeviceInfo device;
  device.target = Target::parse("sm_90a");
  device.limits = hopper;
  const runtime::CandidateList list = runtime::candidate_list(definition, problem, device, 40, 0);
  findings.check(list.launches.size() == list.configs.size());
  std::size_t overlapping = 0;
  for (std::size_t c = 0; c < list.launches.size(); ++c) {
    const bool overlap = from_values<templates::PeerGemm>(list.configs[c]).overlap;
    findings.check(overlap ? list.launches[c] == 1 : list.launches[c] > 1);
    overlapping += overlap ? 1 : 0;
  }
  findings.check(overlapping > 1 && overlapping < list.configs.size() - 1);
}

/// What is right for a problem that is larger than `device_reference`'s: each rank computes it
/// alone, and waits for no rank that cannot make its data.
template <class Kernel, class Problem>
void check_reference(const Runtime& runtime, const SymmetricMemory& memory,
                     const std::shared_ptr<Communicator>& ranks, Kernel kernel,
                     const Problem& problem, Findings& findings) {
  using templates::PeerGemmHandle;
  TuneOptions options;
  options.max_evaluations = 2;
  options.candidate_seconds = 120;
  options.retune = true;
  const TuneResult result =
      PeerGemmHandle<Kernel>(runtime, memory, kernel).tune(problem, ranks, options);
  findings.check(result.count(CandidateStatus::measured) >= 1);
  findings.check(result.count(CandidateStatus::wrong_result) == 0);
  for (const std::string& text : result.warnings)
    findings.check(text.find("the reference on the host") == std::string::npos);

  Kernel lacking = kernel;
  if (memory.rank() == memory.size() - 1)
    lacking.workload = [](const Problem&, Workload&) {
      throw runtime::OutOfMemory("no memory for the data");
    };
  const PeerGemmHandle<Kernel> handle(runtime, memory, lacking);
  options.together.guard = [&, guard = memory.guard(100)](const std::function<void()>& launches) {
    findings.check(false);  // nothing is launched, so nothing is waited for
    guard(launches);
  };
  memory.within(deadline_in(100), [&] {  // throws when a kernel waits in vain
    try {
      findings.check(handle.tune(problem, ranks, options).count(CandidateStatus::measured) == 0);
    } catch (const TuningFailedError&) {
    }
  });
}

}  // namespace kiln::test
