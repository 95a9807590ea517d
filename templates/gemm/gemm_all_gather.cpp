// Host half of gemm_all_gather.hpp: space, launches, maps, cost, and the rows that tunings use.
#include "templates/gemm/gemm_all_gather.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include <tbb/parallel_for.h>

#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/gemm/gemm_configs.hpp"
#include "templates/gemm/gemm_cost.hpp"
#include "templates/gemm/gemm_host.hpp"
#include "templates/gemm/gemm_space.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

namespace {

constexpr auto kOp = GemmTranspose::nt;
constexpr int kMostRanks = 64;

/// What a GPU of a host sends to others, and what a collective or a wait for one takes at least.
constexpr double kLinkBytesPerSecond = 370e9, kMeetingSeconds = 8e-6;

/// The rows of a rank as tunings have them: no rank's are another one's.
template <class T>
std::vector<T> rows_of_rank(int rank, const AllGatherProblem& p) {
  const auto count = static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.k);
  std::vector<T> rows(count);
  tbb::parallel_for(std::size_t{0}, count, [&](std::size_t i) {
    const auto mixed = static_cast<std::uint32_t>(i + 1) * 2654435761u ^
                       (static_cast<std::uint32_t>(rank) + 1) * 2246822519u;
    rows[i] = T(static_cast<float>(mixed >> 23) / 256 - 1);
  });
  return rows;
}

/// Why the GEMM of a config cannot compute all rows; empty: it can.
template <class T>
bool is_a_gemm(const AllGather& c, const AllGatherProblem& p, const DeviceLimits& d) {
  static const DynamicSpace gemms = gemm_space<T, kOp, GemmProblem>().dynamic();
  return !gemms.violated(to_values(c.gemm()), to_values(gathered(p)), d);
}

template <class T>
constexpr Space<AllGather, AllGatherProblem> all_gather_space() {
  using S = Space<AllGather, AllGatherProblem>;
  using P = const AllGatherProblem&;
  using D = const DeviceLimits&;
  constexpr bool kTwoBytes = sizeof(T) == 2;
  constexpr Gemm kDefault = kTwoBytes ? plain_config(GemmBody::mma, 64, 128, 64, 3, 32, 32, 8)
                                      : plain_config(GemmBody::simt, 64, 64, 32, 2, 4, 4, 4);
  S space =
      S{AllGather::of(kDefault, false, 1)}
          .default_on(Target::Kind::host, AllGather::of(kHostDefault, false, 1))
          .values(&AllGather::block_m, {8, 16, 24, 32, 64, 128, 192, 256})
          .values(&AllGather::block_n,
                  {16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256})
          .values(&AllGather::block_k, {32, 64, 128, 256, 512, 1024})
          .values(&AllGather::stages, {1, 2, 3, 4, 5})
          .values(&AllGather::group_m, {1, 4, 8, 16})
          .values(&AllGather::vector, {4, 8, 16})
          .values(&AllGather::tile_m, {1, 2, 4, 8, 16, 32, 64, 128})
          .values(&AllGather::tile_n, {1, 2, 4, 8, 16, 32, 64, 128, 256})
          .values(&AllGather::cluster, {GemmCluster::none, GemmCluster::two_m, GemmCluster::two_n})
          .values(&AllGather::along_n, {false, true})
          .values(&AllGather::overlap, {false, true})
          .values(&AllGather::chunks, {1, 2, 4, 8});
  if constexpr (kTwoBytes)
    space = space.values(&AllGather::body, {GemmBody::simt, GemmBody::mma, GemmBody::wgmma,
                                            GemmBody::tma, GemmBody::pingpong});
  else
    space = space.values(&AllGather::body, {GemmBody::simt});
  return space
      .where("the GEMM can compute the rows of all ranks",
             [](const AllGather& c, P p, D d) { return is_a_gemm<T>(c, p, d); })
      .where("rows are sent in pieces only while others are multiplied",
             [](const AllGather& c, P, D) { return c.overlap || c.chunks == 1; })
      .where("only bodies fed by tensor maps, with at most 192 sums of a thread, wait for rows",
             [](const AllGather& c, P, D) {
               return !c.overlap || (c.gemm().uses_tma() && c.gemm().tma().held_sums() <= 192);
             })
      .where("each rank has rows, and theirs lie at multiples of 16 bytes",
             [](const AllGather& c, P p, D) {
               return !c.overlap || (p.m > 0 && p.n % 8 == 0 && by_rank(p).storable(sizeof(T)));
             })
      .where("a chunk has rows",
             [](const AllGather& c, P p, D) {
               return (c.chunks - 1) * static_cast<long long>(c.chunk_rows(p.m)) < std::max(p.m, 1);
             })
      .checked();
}

/// The cheapest GEMMs of all rows, each as two launches and as one.
template <class T>
std::vector<AllGather> all_gather_configs(const AllGatherProblem& p, const DeviceLimits& d) {
  std::vector<AllGather> configs;
  for (const Gemm& c : gemm_configs(kOp, gemm_shape<kOp>(gathered(p)).general(), sizeof(T),
                                    GemmTypes<T>::kOperands, d)) {
    if (c.body == GemmBody::stream || c.split_k() > 1 || c.parts > 1 || c.swap || c.resident > 1)
      continue;
    configs.push_back(AllGather::of(c, false, 1));
    if (!c.uses_tma()) continue;
    for (const int chunks : {1, 2, 4, 8}) configs.push_back(AllGather::of(c, true, chunks));
  }
  return configs;
}

template <class T>
Launch all_gather_launch(const AllGather& c, const AllGatherProblem& p, const DeviceLimits& d) {
  if (p.m <= 0 || p.k < 0 || p.ranks <= 0) return {{0}, {1}};
  if (c.overlap) {
    Launch launch = gemm_launch<T>(c.gemm(), kOp, by_rank(p), d);
    launch.cooperative = true;  // blocks wait for what blocks of other ranks send
    return launch;
  }
  const double accesses = 1.0 * p.m * p.k * p.ranks * sizeof(T) / 16;
  const double most = 2.0 * std::max(1, d.usable_multiprocessors());
  const double blocks =
      std::clamp(std::ceil(accesses / (4.0 * AllGather::kCopyThreads)), 1.0, most);
  return {{static_cast<unsigned>(blocks)}, {static_cast<unsigned>(AllGather::kCopyThreads)}};
}

GemmShape<false> all_rows(const AllGatherProblem& p) { return gemm_shape<kOp>(gathered(p)); }

template <class T>
std::vector<TypedMapRule<AllGather, AllGatherProblem>> all_gather_maps() {
  using C = const AllGather&;
  using P = const AllGatherProblem&;
  if constexpr (sizeof(T) > 2) {
    return {};
  } else {
    constexpr auto maps = [](C c) { return c.maps(); };
    return {{.argument = 0,
             .map =
                 [](C c, P p) {
                   const GemmTma t = c.gemm().tma();
                   return c.overlap ? c_map<T>(t, by_rank(p)) : c_map<T>(t, all_rows(p));
                 },
             .only_if = maps},
            {.argument = 1,
             .map =
                 [](C c, P p) {
                   GemmShape<true> own = by_rank(p);
                   own.batch = 1;
                   return a_map<T, kOp>(c.gemm(), own);
                 },
             .only_if = [](C c) { return c.overlap; }},
            {.argument = 2,
             .map =
                 [](C c, P p) {
                   return c.overlap ? b_map<T, kOp>(c.gemm(), by_rank(p))
                                    : b_map<T, kOp>(c.gemm(), all_rows(p));
                 },
             .only_if = maps},
            {.argument = 3,
             .map =
                 [](C c, P p) {
                   return c.overlap ? a_map<T, kOp>(c.gemm(), by_rank(p))
                                    : a_map<T, kOp>(c.gemm(), all_rows(p));
                 },
             .only_if = maps}};
  }
}

template <class T>
double all_gather_traffic(const AllGatherProblem& p) {
  return gemm_shape<kOp>(gathered(p)).traffic(sizeof(T), sizeof(T));
}

template <class T>
double all_gather_cost(const AllGather& c, const AllGatherProblem& p, const DeviceLimits& d) {
  const double multiplying =
      gemm_cost(c.gemm(), gathered(p), all_gather_traffic<T>(p), sizeof(T), GemmTypes<T>::kOperands,
                registers(c.gemm(), GemmTypes<T>::kOperands), d);
  const double chunk = sizeof(T) * 1.0 * p.m * p.k / kLinkBytesPerSecond / c.chunks;
  const double sending = chunk * c.chunks * (p.ranks - 1);
  if (!c.overlap) return multiplying + sending + kMeetingSeconds;
  // The first chunk comes while a rank's own rows are multiplied, the last one before its own tiles.
  const double after_last = multiplying / p.ranks / c.chunks;
  return std::max(multiplying, sending + after_last) + kMeetingSeconds / 2;
}

void check(const AllGatherProblem& p) {
  if (p.m < 0 || p.n < 0 || p.k < 0) throw UserError("all-gather + GEMM: m, n or k is negative");
  if (p.ranks < 1 || p.ranks > kMostRanks)
    throw UserError("all-gather + GEMM: there are 1 to " + std::to_string(kMostRanks) + " ranks");
}

}  // namespace

std::size_t gathered_elements(int m, int k, int ranks) {
  check({m, 0, k, ranks});
  const auto elements = static_cast<std::size_t>(row_bucket(m)) * static_cast<std::size_t>(k) *
                        static_cast<std::size_t>(ranks);
  return std::max<std::size_t>(elements, 1);  // symmetric memory is never empty
}

template <class T>
AllGatherGemmKernel<T> all_gather_gemm_kernel(const SymmetricMemory& memory) {
  const auto fill = [rank = memory.rank(), size = memory.size(), bytes = memory.bytes(),
                     flags = memory.flags(), data = memory.data(),
                     peers = memory.peers()](const AllGatherProblem& p, Workload& w) {
    if (p.ranks != size) throw UserError("all-gather + GEMM: `ranks` is not the memory's number");
    if (gathered_elements(p.m, p.k, p.ranks) * sizeof(T) > bytes || flags < kAllGatherFlags)
      throw UserError("all-gather + GEMM: the symmetric memory is too small, or has too few flags");
    const auto m = static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.ranks);
    const auto n = static_cast<std::size_t>(p.n), k = static_cast<std::size_t>(p.k);
    const std::vector<T> own = rows_of_rank<T>(rank, p);
    w.output<T>(m * n).input(std::span<const T>(own)).template input<T>(n * k);
    w.address(data).input(std::span<const T>(own)).address(peers);
    w.scalar(p.m).scalar(p.n).scalar(p.k).scalar(p.ranks);
  };
  return {
      .name = "all_gather_gemm",
      .source = {.file = templates_dir() / "gemm/gemm_all_gather.cuh"},
      .entry = "kiln::templates::gemm_all_gather",
      .config_type = "kiln::templates::AllGather",
      .types = {device_name<T>()},
      .space = all_gather_space<T>(),
      .configs = all_gather_configs<T>,
      .launch = all_gather_launch<T>,
      .maps = all_gather_maps<T>(),
      .steps = {{.entry = "kiln::templates::gemm_all_gather_multiply",
                 .launch =
                     [](const AllGather& c, const AllGatherProblem& p, const DeviceLimits& d) {
                       return gemm_launch<T>(c.gemm(), kOp, gemm_shape<kOp>(gathered(p)), d);
                     },
                 .only_if = [](const AllGather& c) { return !c.overlap; }}},
      .problem =
          [](T*, const T* own, const T*, const T*, const T* sent, const Peers*, int m, int n, int k,
             int ranks) {
            if (own != sent) throw UserError("all-gather + GEMM: the rank's rows are given twice");
            return AllGatherProblem{m, n, k, ranks};
          },
      .relations = {{6, "m"}, {7, "n"}, {8, "k"}, {9, "ranks"}},
      .bucket =
          [](const AllGatherProblem& p) {
            check(p);
            return AllGatherProblem{row_bucket(p.m), p.n, p.k, p.ranks};
          },
      .workload = fill,
      .reference =
          [](T* c, const T*, const T* b, const T*, const T*, const Peers*, int m, int n, int k,
             int ranks) {
            const AllGatherProblem p{m, n, k, ranks};
            GemmShape<true> rows = by_rank(p);
            rows.batch = 1;
            for (int r = 0; r < ranks; ++r)
              gemm_sums<T>(kOp, rows, rows_of_rank<T>(r, p).data(), b,
                           [&](const float* sums, int, int row, int column, int count) {
                             T* const to = c + (GemmStride{r} * m + row) * GemmStride{n} + column;
                             for (int j = 0; j < count; ++j) to[j] = T(sums[j]);
                           });
          },
      .device_reference =
          DeviceReference{.config = "",
                          .problem = {{"m", 96}, {"n", 200}, {"k", 136}, {"ranks", memory.size()}}},
      .tolerance = kGemmTolerance<T>,
      .data_version = "rows of ranks, 1",
      .flops = [](const AllGatherProblem& p) { return 2.0 * p.m * p.ranks * p.n * p.k; },
      .bytes = all_gather_traffic<T>,
      .cost = all_gather_cost<T>,
      .untuned_by_cost =
          [](const DeviceLimits& d) { return sizeof(T) <= 2 && d.compute_capability == 90; },
      .numerics = [](const AllGather& c,
                     const AllGatherProblem&) { return order_of_sums(c.gemm()); }};
}

template AllGatherGemmKernel<float> all_gather_gemm_kernel(const SymmetricMemory&);
template AllGatherGemmKernel<float16> all_gather_gemm_kernel(const SymmetricMemory&);
template AllGatherGemmKernel<bfloat16> all_gather_gemm_kernel(const SymmetricMemory&);

}  // namespace kiln::templates
