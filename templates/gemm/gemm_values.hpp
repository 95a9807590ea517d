// The values of the fields of gemm.hpp's configs, by the type of the operands, and the defaults.
#pragma once

#include "templates/kernels.hpp"

namespace kiln::templates {

/// A config of a body without tensor maps.
constexpr Gemm plain_config(GemmBody body, int block_m, int block_n, int block_k, int stages,
                            int tile_m, int tile_n, int vector, int group_m = 8) {
  return {.body = body,
          .block_m = block_m,
          .block_n = block_n,
          .block_k = block_k,
          .stages = stages,
          .tile_m = tile_m,
          .tile_n = tile_n,
          .vector = vector,
          .group_m = group_m,
          .cluster = GemmCluster::none,
          .resident = 1,
          .along_n = false,
          .swap = false,
          .parts = 1,
          .later = false,
          .programmatic = false};
}

/// A thread of the host holds 4 x 4 sums, each a vector over k.
inline constexpr Gemm kHostDefault = plain_config(GemmBody::simt, 16, 32, 256, 1, 4, 4, 16);
inline constexpr Gemm kScaledHostDefault = plain_config(GemmBody::simt, 16, 32, 128, 1, 4, 4, 16);

/// What bodies with tensor maps choose from.
template <class Problem>
constexpr Space<Gemm, Problem> with_tensor_maps(Space<Gemm, Problem> space) {
  return space
      .values(&Gemm::cluster, {GemmCluster::none, GemmCluster::two_m, GemmCluster::two_n,
                               GemmCluster::split_2, GemmCluster::split_3, GemmCluster::split_4})
      .values(&Gemm::along_n, {false, true})
      .values(&Gemm::swap, {false, true})
      .values(&Gemm::parts, {1, 2, 4, 6, 8, 12, 16})
      .values(&Gemm::later, {false, true})
      .values(&Gemm::programmatic, {false, true});
}

/// All that multiply elements of 2 bytes.
template <bool shift, class Problem>
constexpr Space<Gemm, Problem> with_bodies(Space<Gemm, Problem> space) {
  if constexpr (shift)
    return space.values(&Gemm::body, {GemmBody::simt, GemmBody::mma, GemmBody::wgmma, GemmBody::tma,
                                      GemmBody::pingpong, GemmBody::stream, GemmBody::shift});
  else
    return space.values(&Gemm::body, {GemmBody::simt, GemmBody::mma, GemmBody::wgmma, GemmBody::tma,
                                      GemmBody::pingpong, GemmBody::stream});
}

/// The values of each field, by the type. `halves`: of tiles that add half of their columns at a
/// time, too, which are not worth it where others do. `shift`: of that body, too.
template <class T, class Problem, bool halves = false, bool shift = false>
constexpr Space<Gemm, Problem> gemm_values() {
  if constexpr (!halves && (GemmTypes<T>::kOperands == GemmOperands::fp8_exact || kBlockScaled<T>))
    return gemm_values<T, Problem, true>().where(
        "the tensor cores' sums of all columns of a tile fit registers beside its own",
        [](const Gemm& c, const Problem&, const DeviceLimits&) {
          return !c.uses_tma() || !c.tma(GemmTypes<T>::kOperands).halved();
        });
  else if constexpr (sizeof(GemmOperand<T>) == 2)
    return with_tensor_maps(with_bodies<shift>(Space<Gemm, Problem>{plain_config(
                                                   GemmBody::mma, 64, 128, 64, 3, 32, 32, 8)})
                                .default_on(Target::Kind::host, kHostDefault)
                                .values(&Gemm::tile_m, {4, 8, 16, 32, 64, 128})
                                .values(&Gemm::tile_n, {2, 4, 8, 16, 32, 64, 128, 256})
                                .values(&Gemm::vector, {8, 16}));
  else if constexpr (GemmTypes<T>::kFp8)
    return with_tensor_maps(
        Space<Gemm, Problem>{plain_config(GemmBody::simt, 64, 64, 64, 2, 4, 4, 8)}
            .default_on(Target::Kind::host, kBlockScaled<T> ? kScaledHostDefault : kHostDefault)
            .values(&Gemm::body, {GemmBody::simt, GemmBody::tma, GemmBody::pingpong})
            .values(&Gemm::tile_m, {1, 2, 4, 8, 64, 128})
            .values(&Gemm::tile_n, {1, 2, 4, 8, 64})
            .values(&Gemm::vector, {4, 8, 16}));
  else
    return Space<Gemm, Problem>{plain_config(GemmBody::simt, 64, 64, 32, 2, 4, 4, 4)}
        .default_on(Target::Kind::host, kHostDefault)
        .values(&Gemm::body, {GemmBody::simt})
        .values(&Gemm::tile_m, {1, 2, 4, 8})
        .values(&Gemm::tile_n, {1, 2, 4, 8})
        .values(&Gemm::vector, {4, 8, 16});
}

}  // namespace kiln::templates
