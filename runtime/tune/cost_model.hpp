// A guess, before anything is compiled, at how long a config will take: good for ranking.
//
// On a GPU: the work of one block at the slower of the compute and the memory roof, times the
// waves in which blocks share the multiprocessors, the last one partly filled; a wave with too few
// warps to hide latency takes longer. On the host: blocks that follow each other on the cores, each
// with its own cost, the last round partly filled. A kernel may bring a model of its own.
#pragma once

#include <cstdint>
#include <span>

#include "codegen/binary.hpp"
#include "kiln/detail/tunable.hpp"
#include "kiln/device.hpp"

namespace kiln::runtime {

/// Refers to what is tuned and to the problem; they must outlive it. Pure; safe from several
/// threads.
class CostModel {
 public:
  CostModel(const detail::Tunable& subject, std::span<const std::int64_t> problem,
            const DeviceInfo& device);

  /// Seconds of a config that the space allows. Only their order is to be trusted. Infinite when it
  /// cannot be launched, never NaN.
  double seconds(std::span<const std::int64_t> config) const;

  /// The same, knowing what the compiler made of it: registers and shared memory give the true
  /// occupancy, and spills cost extra.
  double seconds(std::span<const std::int64_t> config, const codegen::ResourceUsage& usage) const;

 private:
  double general(const Launch& launch, const codegen::ResourceUsage& usage) const;
  double on_gpu(const Launch& launch, const codegen::ResourceUsage& usage) const;
  double on_host(const Launch& launch) const;

  detail::Tunable subject_;
  std::span<const std::int64_t> problem_;
  DeviceLimits limits_;
  double flops_ = 0, bytes_ = 0;  ///< of the problem
};

}  // namespace kiln::runtime
