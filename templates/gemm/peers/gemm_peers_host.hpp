// What the host halves of gemm_all_gather.hpp and gemm_reduce_scatter.hpp share: configs, launches,
// costs, data.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tbb/parallel_for.h>

#include "kiln/error.hpp"
#include "templates/gemm/gemm_bucket.hpp"
#include "templates/gemm/gemm_configs.hpp"
#include "templates/gemm/gemm_cost.hpp"
#include "templates/gemm/gemm_host.hpp"
#include "templates/gemm/peers/gemm_peers_kernel.hpp"
#include "templates/gemm/peers/gemm_peers_reference.hpp"
#include "templates/gemm/peers/gemm_peers_space.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

/// What a GPU sends to others of its host, and what a collective takes at least.
inline constexpr double kLinkBytesPerSecond = 370e9, kMeetingSeconds = 8e-6;
/// Bytes that blocks that only send move while others multiply; measured on H100s.
inline double senders_bytes_per_second(const PeerGemm& c) {
  constexpr double kLink = 250e9, kOfSender = 35e9;
  return std::min(kLink, kOfSender * c.senders);
}
/// How much longer a GEMM takes if its multiprocessors send their sums while they multiply;
/// measured on H200s.
inline constexpr double kOverlapping = 1.1;

/// Of the problem as it is tuned, too.
inline void check_peers(const PeerGemmProblem& p) {
  constexpr int kMostRanks = 64;
  if (p.m < 0 || p.n < 0 || p.k < 0) throw UserError("a GEMM of ranks: m, n or k is negative");
  if (p.ranks < 1 || p.ranks > kMostRanks)
    throw UserError("a GEMM of ranks: there are 1 to " + std::to_string(kMostRanks) + " ranks");
  check_depth(p.k);
  if (1.0 * row_bucket(p.m) * p.ranks > 2147483647.0)
    throw UserError("a GEMM of ranks: there are more than 2^31 - 1 rows");
}

/// Elements that ranks share of [parts][m][columns], with as many rows as `m` is tuned as, in whole
/// boxes of `box_rows` x `box_columns`. Symmetric memory is never empty.
inline std::size_t peer_gemm_elements(int m, int columns, int parts, int box_rows = 1,
                                      int box_columns = 1) {
  const auto whole = [](int size, int box) {
    const auto boxed = static_cast<std::size_t>(box);
    return (static_cast<std::size_t>(size) + boxed - 1) / boxed * boxed;
  };
  const std::size_t elements = whole(row_bucket(m), box_rows) * whole(columns, box_columns) *
                               static_cast<std::size_t>(parts);
  return std::max<std::size_t>(elements, 1);
}

/// `count` elements of a rank as tunings have them.
template <class T>
std::vector<T> elements_of_rank(int rank, std::size_t count) {
  std::vector<T> elements(count);
  tbb::parallel_for(std::size_t{0}, count, [&](std::size_t i) {
    elements[i] = T(element_of_rank(rank, static_cast<unsigned>(i)));
  });
  return elements;
}

/// The chunks in which a rank's rows are sent: up to four, which let a receiver begin early enough.
inline int chunks_of(PeerGemm c, int m) {
  for (c.overlap = true, c.chunks = 4; c.chunks > 1; c.chunks /= 2)
    if ((c.chunks - 1) * static_cast<long long>(c.chunk_rows(m)) < m) break;
  return c.chunks;
}

template <class T>
double peer_gemm_traffic(const PeerGemmProblem& p) {
  return all_rows(p).traffic(sizeof(T), sizeof(T));
}
template <class T>
double peer_multiplying_cost(const PeerGemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
  return gemm_cost(c.gemm(), all_ranks(p), peer_gemm_traffic<T>(p), sizeof(T),
                   GemmTypes<T>::kOperands, registers(c.gemm(), GemmTypes<T>::kOperands), d);
}

/// The GEMMs of all rows as two launches, and as one. Ranks measure a list that does not adapt to
/// what has been measured: so it has, of each tile in one launch, no variants that hardly matter,
/// but those that `variants` adds.
template <class T, class Variants>
std::vector<PeerGemm> peer_gemm_configs(const PeerGemmProblem& p, const DeviceLimits& d,
                                        const Variants& variants) {
  std::vector<PeerGemm> configs;
  for (const Gemm& c :
       gemm_configs(kPeerOp, all_rows(p).general(), sizeof(T), GemmTypes<T>::kOperands, d)) {
    if (c.body == GemmBody::stream || c.split_k() > 1 || c.parts > 1 || c.swap || c.resident > 1)
      continue;
    const PeerGemm two = PeerGemm::of(c, false, 1);
    configs.push_back(two);
    if (!c.uses_tma() || c.block_k != 64 || c.group_m != Gemm::kGroup) continue;
    const PeerGemm one = PeerGemm::of(c, true, chunks_of(two, p.m));
    configs.push_back(one);
    variants(one, configs);
  }
  return configs;
}
/// With one variant of each tile in one launch.
template <class T>
std::vector<PeerGemm> peer_gemm_configs(const PeerGemmProblem& p, const DeviceLimits& d) {
  return peer_gemm_configs<T>(p, d, [](const PeerGemm&, std::vector<PeerGemm>&) {});
}

/// How clusters of which some send before they multiply share the tiles, in rounds of tiles.
struct SenderRounds {
  double all;      // if none had to send
  double sending;  // that pass while `bytes` are sent
  double rest;     // of those that do not send
  double late;     // of those that do, behind sending; then the rest has no more than all
};
template <class T>
SenderRounds sender_rounds(const PeerGemm& c, const PeerGemmProblem& p, double bytes,
                           const DeviceLimits& d) {
  const GemmTma t = c.gemm().tma();
  const auto size = static_cast<unsigned>(t.cluster());
  const auto all = std::max(2u, static_cast<unsigned>(d.usable_multiprocessors()) / size);
  const unsigned senders = std::min(all - 1, static_cast<unsigned>(c.senders) / size);
  const unsigned tiles = t.tiles_m(p.m, p.n) * t.tiles_n(p.m, p.n) * static_cast<unsigned>(p.ranks);
  const auto rounds = [&](unsigned of, unsigned clusters) {
    return clusters == 0 ? 0 : static_cast<double>((of + clusters - 1) / clusters);
  };
  SenderRounds r{.all = rounds(tiles, all),
                 .sending = 0,
                 .rest = rounds(tiles, all - senders),
                 .late = rounds(late_tiles(tiles, all - senders, senders), senders)};
  r.sending = bytes / senders_bytes_per_second(c) /
              std::max(1e-9, peer_multiplying_cost<T>(c, p, d)) * r.all;
  return r;
}

/// The launch that overlaps.
template <class T>
Launch overlapping_launch(const PeerGemm& c, const PeerGemmProblem& p, unsigned shared_bytes,
                          const DeviceLimits& d) {
  Launch launch = gemm_launch<T>(c.gemm(), kPeerOp, by_rank(p), d);
  launch.shared_bytes = shared_bytes;
  const auto cluster = static_cast<unsigned>(c.gemm().tma().cluster());
  const unsigned most = std::max(
      launch.grid.x, static_cast<unsigned>(d.usable_multiprocessors()) / cluster * cluster);
  launch.grid.x = std::min(launch.grid.x + static_cast<unsigned>(c.senders), most);
  launch.cooperative = true;  // blocks wait for what blocks of other ranks send
  return launch;
}
/// A launch that copies or adds `bytes`, or an empty one if there is nothing to do.
inline Launch communicating_launch(const PeerGemmProblem& p, double bytes, const DeviceLimits& d) {
  if (p.m <= 0 || p.n <= 0 || p.ranks <= 0) return {{0}, {1}};
  const double most = 2.0 * std::max(1, d.usable_multiprocessors());
  const double blocks = std::clamp(bytes / (64.0 * PeerGemm::kCopyThreads), 1.0, most);
  return {{static_cast<unsigned>(blocks)}, {static_cast<unsigned>(PeerGemm::kCopyThreads)}};
}

/// Seconds, of which only the order is meaningful; of multiplying, if the launch overlaps, while
/// rows or sums are sent.
inline double peer_gemm_cost(const PeerGemm& c, const PeerGemmProblem& p, double multiplying,
                             double sending) {
  if (!c.overlap) return multiplying + sending + kMeetingSeconds;
  // One chunk's tiles come before, or behind, all that is sent.
  return std::max(multiplying, sending + multiplying / p.ranks / c.chunks) + kMeetingSeconds / 2;
}

/// The config of two launches whose GEMM is expected to be fastest; none: the space's default. So
/// ranks that tune always measure what they would do without communicating kernels.
template <class T>
std::optional<PeerGemm> peer_gemm_default(const PeerGemmProblem& p, const DeviceLimits& d) {
  std::optional<PeerGemm> best;
  if (sizeof(T) > 2 || d.compute_capability != 90) return best;
  double least = 0;
  for (const PeerGemm& c : peer_gemm_configs<T>(p, d)) {
    if (c.overlap || !is_a_gemm<T>(c.gemm(), p, d)) continue;
    if (const double cost = peer_multiplying_cost<T>(c, p, d); !best || cost < least) {
      best = c;
      least = cost;
    }
  }
  return best;
}

/// @throws UserError when it has fewer flags: those of a source rank would be another one's, too
inline void check_flags(const SymmetricMemory& memory, unsigned flags) {
  if (memory.flags() < flags)
    throw UserError("a GEMM of ranks: the symmetric memory has " + std::to_string(memory.flags()) +
                    " flags, of " + std::to_string(flags) + " that are needed");
}

/// What both operations have in common; the rest is for each to fill in.
template <class T, class Type>
Type peer_gemm_base(const SymmetricMemory& memory,
                    const typename PeerReference<Type>::Type& reference) {
  check_flags(memory, kPeerGemmFlags);
  Type kernel{.space = peer_gemm_space<OfSize<T>>()};
  kernel.config_type = "kiln::templates::PeerGemm";
  kernel.types = {device_name<T>()};
  kernel.configs = [](const PeerGemmProblem& p, const DeviceLimits& d) {
    return peer_gemm_configs<OfSize<T>>(p, d);
  };
  kernel.bucket = [](const PeerGemmProblem& p) {
    check_peers(p);
    return PeerGemmProblem{row_bucket(p.m), p.n, p.k, p.ranks};
  };
  kernel.device_reference =
      DeviceReference{.config = "",
                      .problem = {{"m", 96}, {"n", 200}, {"k", 136}, {"ranks", memory.size()}},
                      .kernel = std::make_shared<const KernelDefinition>(reference.definition())};
  kernel.tolerance = kGemmTolerance<T>;
  kernel.data_version = "elements of ranks, 1";
  kernel.flops = [](const PeerGemmProblem& p) { return 2.0 * p.m * p.ranks * p.n * p.k; };
  kernel.bytes = peer_gemm_traffic<OfSize<T>>;
  kernel.default_for = peer_gemm_default<OfSize<T>>;
  return kernel;
}

/// @throws UserError when `memory` cannot hold what a tuning of the problem shares
inline void check_tuning(const SymmetricMemory& memory, const PeerGemmProblem& p,
                         std::size_t bytes) {
  if (p.ranks != memory.size())
    throw UserError("a GEMM of ranks: `ranks` is not the symmetric memory's number");
  if (bytes > memory.bytes()) throw UserError("a GEMM of ranks: the symmetric memory is too small");
}

}  // namespace kiln::templates
