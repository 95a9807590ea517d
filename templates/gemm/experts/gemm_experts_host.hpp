// What the host halves of gemm_experts_gather.hpp and gemm_experts_combine.hpp share: space,
// configs, launches, and the experts that tunings draw.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/gemm/experts/gemm_experts.hpp"
#include "templates/gemm/grouped/gemm_grouped_host.hpp"
#include "templates/gemm/peers/gemm_peers_host.hpp"

namespace kiln::templates {

/// Of the problem as it is tuned, too.
inline void check_experts(const ExpertsProblem& p) {
  check_peers({p.m, p.n, p.k, p.ranks});
  if (p.groups < 0 || p.top < 0) throw UserError("a GEMM of experts: groups or top is negative");
  if (1.0 * row_bucket(p.m) * p.top * p.ranks > 2147483647.0)
    throw UserError("a GEMM of experts: there are more than 2^31 - 1 rows");
}

/// Whether the grouped GEMM can compute all rows.
template <class T>
bool is_a_grouped_gemm(const Gemm& c, const GroupedProblem& p, const DeviceLimits& d) {
  static const DynamicSpace gemms = grouped_space<T, GroupedProblem>().dynamic();
  return !gemms.violated(to_values(c), to_values(p), d);
}

template <class T>
constexpr Space<PeerGemm, ExpertsProblem> experts_space() {
  using P = const ExpertsProblem&;
  using D = const DeviceLimits&;
  return peer_gemm_values<T, ExpertsProblem>({1, 2, 4, 8, 16, 32})
      .where("the GEMM can compute the rows of all experts",
             [](const PeerGemm& c, P p, D d) {
               return is_a_grouped_gemm<T>(c.gemm(), expert_rows(p), d);
             })
      .where("there are rows, and they lie at multiples of 16 bytes",
             [](const PeerGemm& c, P p, D) {
               return !c.overlap || (p.rows() > 0 && p.groups > 0 && p.n % 8 == 0 && p.k % 8 == 0);
             });
}

/// Tiles of clusters, if all experts get as many rows.
inline unsigned expected_tiles(const PeerGemm& c, const ExpertsProblem& p) {
  const GroupedTile tile = tile_of(c.gemm());
  double tiles = 0;
  for (const int rows : drawn_rows(expert_rows(p), 0)) tiles += std::ceil(1.0 * rows / tile.rows);
  return static_cast<unsigned>(tiles * std::ceil(1.0 * p.n / tile.columns));
}
/// As peer_gemm_configs.
template <class T, class Variants>
std::vector<PeerGemm> experts_configs(const ExpertsProblem& p, const DeviceLimits& d,
                                      const Variants& variants) {
  std::vector<PeerGemm> configs;
  for (const Gemm& c : grouped_configs<T>(expert_rows(p), d)) {
    if (c.swap || c.resident > 1) continue;
    configs.push_back(PeerGemm::of(c, false, 1));
    if (c.uses_tma() && c.block_k == 64 && c.group_m == Gemm::kGroup)
      variants(PeerGemm::of(c, true, 1), configs);
  }
  return configs;
}
/// As peer_gemm_default.
template <class T>
std::optional<PeerGemm> experts_default(const ExpertsProblem& p, const DeviceLimits& d) {
  std::optional<PeerGemm> best;
  if (sizeof(T) > 2 || d.compute_capability != 90) return best;
  double least = 0;
  for (const PeerGemm& c :
       experts_configs<T>(p, d, [](const PeerGemm&, std::vector<PeerGemm>&) {})) {
    if (!is_a_grouped_gemm<T>(c.gemm(), expert_rows(p), d)) continue;
    if (const double cost = grouped_cost<T>(c.gemm(), expert_rows(p), d); !best || cost < least) {
      best = c;
      least = cost;
    }
  }
  return best;
}

/// A launch that overlaps: some blocks communicate while the others multiply.
template <class T>
Launch overlapping_experts(const PeerGemm& c, const ExpertsProblem& p, unsigned shared_bytes,
                           const DeviceLimits& d) {
  Launch launch = grouped_launch<T>(c.gemm(), expert_rows(p), d);
  launch.shared_bytes = shared_bytes;
  const auto cluster = static_cast<unsigned>(c.gemm().tma().cluster());
  const unsigned most = static_cast<unsigned>(d.usable_multiprocessors()) / cluster * cluster;
  const auto senders = static_cast<unsigned>(c.senders);
  launch.grid.x = std::max(std::min(launch.grid.x + senders, most), senders + cluster);
  launch.cooperative = true;  // blocks wait for what others send and compute
  return launch;
}

/// Maps of the rows of all experts and of B, which are the arguments number `rows` and `b`.
template <class T>
std::vector<TypedMapRule<PeerGemm, ExpertsProblem>> experts_maps(std::size_t rows, std::size_t b) {
  using C = const PeerGemm&;
  using P = const ExpertsProblem&;
  if constexpr (sizeof(T) > 2) {
    return {};
  } else {
    constexpr auto maps = [](C c) { return c.maps(); };
    return {{.argument = rows,
             .map = [](C c, P p) { return a_map<T, kGroupedOp>(c.gemm(), experts_shape(p)); },
             .only_if = maps},
            {.argument = b,
             .map = [](C c, P p) { return b_map<T, kGroupedOp>(c.gemm(), experts_shape(p)); },
             .only_if = maps}};
  }
}

/// Which expert gets which token. Of the last draw an eighth of each expert's choices is dropped,
/// as by experts with a capacity: rows from `used` on are nobody's.
struct DrawnExperts {
  std::vector<int> ends, tokens, places;
  std::size_t used = 0;
};
inline DrawnExperts drawn_experts(const ExpertsProblem& p, std::size_t draw) {
  const auto rows = static_cast<std::size_t>(p.rows());
  DrawnExperts drawn{drawn_rows(expert_rows(p), draw), std::vector<int>(rows, -1),
                     std::vector<int>(rows, -1)};
  for (int& end : drawn.ends) {
    drawn.used += static_cast<std::size_t>(draw + 1 < kGroupDraws.size() ? end : end - end / 8);
    end = static_cast<int>(drawn.used);
  }
  std::vector<int> choices(rows);  // token * top + expert's number, of each row
  for (std::size_t i = 0; i < rows; ++i) choices[i] = static_cast<int>(i);
  std::mt19937 random(static_cast<unsigned>(draw) + 1);
  for (std::size_t i = rows; i > 1; --i) std::swap(choices[i - 1], choices[random() % i]);
  auto begin = choices.begin();
  for (const int end : drawn.ends) {
    std::sort(begin, choices.begin() + end);
    begin = choices.begin() + end;
  }
  for (std::size_t i = 0; i < drawn.used; ++i) {
    drawn.tokens[i] = choices[i] / p.top;
    drawn.places[static_cast<std::size_t>(choices[i])] = static_cast<int>(i);
  }
  return drawn;
}

/// What both operations have in common; the rest is for each to fill in.
template <class T, class Type>
Type experts_base(const SymmetricMemory& memory,
                  const typename PeerReference<Type>::Type& reference) {
  check_flags(memory, kExpertFlags);
  Type kernel{.space = experts_space<OfSize<T>>()};
  kernel.config_type = "kiln::templates::PeerGemm";
  kernel.types = {device_name<T>()};
  kernel.bucket = [](const ExpertsProblem& p) {
    check_experts(p);
    return ExpertsProblem{row_bucket(p.m), p.n, p.k, p.groups, p.top, p.ranks};
  };
  kernel.draws = kGroupDraws;
  kernel.device_reference = DeviceReference{
      .config = "",
      .problem =
          {{"m", 40}, {"n", 72}, {"k", 136}, {"groups", 3}, {"top", 2}, {"ranks", memory.size()}},
      .kernel = std::make_shared<const KernelDefinition>(reference.definition())};
  kernel.tolerance = kGemmTolerance<T>;
  kernel.data_version = "elements of ranks, some choices dropped, 2";
  kernel.flops = [](const ExpertsProblem& p) { return 2.0 * p.rows() * p.n * p.k; };
  kernel.bytes = [](const ExpertsProblem& p) {
    return expectation(expert_rows(p), [&](const auto& rows) {
      return traffic_of<OfSize<T>>(expert_rows(p), rows);
    });
  };
  kernel.default_for = experts_default<OfSize<T>>;
  kernel.numerics = [](const PeerGemm& c, const ExpertsProblem&) {
    return order_of_sums(c.gemm());
  };
  return kernel;
}

/// @throws UserError when `memory` cannot hold what a tuning of the problem shares
inline void check_tuning(const SymmetricMemory& memory, const ExpertsProblem& p,
                         std::size_t bytes) {
  if (p.ranks != memory.size())
    throw UserError("a GEMM of experts: `ranks` is not the symmetric memory's number");
  if (bytes > memory.bytes())
    throw UserError("a GEMM of experts: the symmetric memory is too small");
}

}  // namespace kiln::templates
