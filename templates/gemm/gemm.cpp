// Host half of gemm.hpp: space, launch, reference. The space lives here and not in the header, so
// that a new value leaves the kernel's source, and with it every compiled binary, as it is.
#include <algorithm>

#include "kiln/paths.hpp"
#include "templates/gemm/gemm_configs.hpp"
#include "templates/gemm/gemm_cost.hpp"
#include "templates/gemm/gemm_reference.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

namespace {

/// Registers for a thread's sums, and an estimate of those for operands and addresses.
constexpr int registers(const Gemm& c) {
  const int elements = c.tile_m * c.tile_n;
  switch (c.body) {
    case GemmBody::mma:
      return elements / 32 + (c.tile_m + c.tile_n) / 4 + 40;
    case GemmBody::wgmma:
      return elements / 128 + 60;
    default:
      break;
  }
  return elements + (c.tile_m + 1) * c.vector + 40;
}

template <class T>
constexpr Space<Gemm, GemmProblem> constrained(Space<Gemm, GemmProblem> space) {
  using P = const GemmProblem&;
  using D = const DeviceLimits&;
  return space.values(&Gemm::block_m, {8, 16, 32, 64, 128, 192, 256})
      .values(&Gemm::block_n,
              {8, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256})
      .values(&Gemm::block_k, {32, 64, 128, 256, 512, 1024, 2048, 4096})
      .values(&Gemm::stages, {1, 2, 3, 4, 5, 8})
      .values(&Gemm::group_m, {1, 4, 8, 16})
      .where("tiles divide blocks, and vector divides block_k",
             [](const Gemm& c, P, D) { return c.divides(); })
      .where(
          "bodies fed by tensor maps need sm_90, and rows of a multiple of 16 bytes (n and k of 8)",
          [](const Gemm& c, P p, D d) {
            return !c.uses_tma() || (d.compute_capability == 90 && d.tensor_maps && p.k > 0 &&
                                     p.k % 8 == 0 && p.n % 8 == 0);
          })
      .where("the stream body takes at most block_m rows and a k that is a multiple of 8",
             [](const Gemm& c, P p, D d) {
               return c.body != GemmBody::stream ||
                      (p.m <= c.block_m && p.k > 0 && p.k % 8 == 0 &&
                       d.compute_capability >= (c.programmatic ? 90 : 80));
             })
      .where("the threads of a block fit the device, and are whole warps on a GPU",
             [](const Gemm& c, P, D d) {
               return c.threads() <= d.max_threads_per_block &&
                      (d.on_host() || c.threads() % d.warp_size == 0);
             })
      .where("the buffers of a block fit its shared memory",
             [](const Gemm& c, P, D d) {
               return c.shared_bytes(sizeof(T)) <= static_cast<unsigned>(d.shared_per_block_optin);
             })
      .where(
          "bodies on tensor cores need sm_80 or later, those with wgmma sm_90, and each access "
          "has 8 elements",
          [](const Gemm& c, P, D d) {
            const int capability = d.compute_capability;
            return c.body == GemmBody::simt ||
                   (c.vector == 8 &&
                    (c.body == GemmBody::mma || c.body == GemmBody::stream ? capability >= 80
                                                                           : capability == 90));
          })
      .where("2-byte elements are multiplied on tensor cores if the device has them",
             [](const Gemm& c, P, D d) {
               return c.body != GemmBody::simt || sizeof(T) != 2 || d.compute_capability < 80;
             })
      .where("a block of more than 64 rows (host: 16) has work for more than half of them",
             [](const Gemm& c, P p, D d) {
               return c.block_m <= (d.on_host() ? 16 : 64) || c.block_m < 2 * (c.swap ? p.n : p.m);
             })
      .where("an access of a GPU moves at most 16 bytes",
             [](const Gemm& c, P, D d) { return d.on_host() || c.vector * sizeof(T) <= 16; })
      .where("the sums and operands of a thread fit its registers",
             [](const Gemm& c, P, D d) {
               return d.on_host() || !c.plain() ||
                      (registers(c) <= 255 && registers(c) * c.threads() <= d.registers_per_block);
             })
      .where(
          "a thread of a GPU makes at most 32 copies per slice, because their addresses take "
          "registers",
          [](const Gemm& c, P, D d) {
            return d.on_host() || !c.plain() ||
                   (c.block_m + c.block_n) * (c.block_k / c.vector) <= 32 * c.threads();
          })
      .where(
          "a thread has at most 64 sums (simt), a warp's tile is at most 64 x 64 (mma), and there "
          "are at least 3 stages (wgmma)",
          [](const Gemm& c, P, D) {
            switch (c.body) {
              case GemmBody::simt:
                return c.tile_m * c.tile_n <= 64;
              case GemmBody::mma:
                return c.tile_m <= 64 && c.tile_n <= 64;
              case GemmBody::wgmma:
                return c.stages >= 3;
              default:
                return true;
            }
          })
      .where("the host has 1 stage, because its copies are immediate",
             [](const Gemm& c, P, D d) { return !d.on_host() || c.stages == 1; })
      .where("a slice has at most 128 elements of k on a GPU, and at least 128 on the host",
             [](const Gemm& c, P, D d) {
               return !c.plain() || (d.on_host() ? c.block_k >= 128 : c.block_k <= 128);
             })
      .where("a thread of the host has 4 to 32 sums, so that they stay in vector registers",
             [](const Gemm& c, P, D d) {
               return !d.on_host() || (c.tile_m * c.tile_n >= 4 && c.tile_m * c.tile_n <= 32);
             })
      .where(
          "a block of the host has at most 128 columns, so that its slices stay in its core's "
          "cache",
          [](const Gemm& c, P, D d) { return !d.on_host() || c.block_n <= 128; })
      .where(
          "group_m is not 8 only where the order of blocks changes: a smaller one needs more block "
          "rows than itself, a larger one more than 8",
          [](const Gemm& c, P p, D) {
            return c.group_m == 8 || !c.plain() ||
                   c.tiles_m(p.m) > static_cast<unsigned>(c.group_m < 8 ? c.group_m : 8);
          })
      .where("the grid fits the device",
             [](const Gemm& c, P p, D d) {
               return c.grid(p, d.usable_multiprocessors()) <= d.max_grid.x;
             })
      .checked();
}

/// A thread of the host holds 4 x 4 sums, each a vector over k.
constexpr Gemm kHostDefault{.body = GemmBody::simt,
                            .block_m = 16,
                            .block_n = 32,
                            .block_k = 256,
                            .stages = 1,
                            .tile_m = 4,
                            .tile_n = 4,
                            .vector = 16,
                            .group_m = 8,
                            .cluster = GemmCluster::none,
                            .resident = 1,
                            .along_n = false,
                            .swap = false,
                            .programmatic = false};

template <class T>
constexpr Space<Gemm, GemmProblem> gemm_space() {
  if constexpr (sizeof(T) == 2)
    return constrained<T>(
        Space<Gemm, GemmProblem>{{.body = GemmBody::mma,
                                  .block_m = 64,
                                  .block_n = 128,
                                  .block_k = 64,
                                  .stages = 3,
                                  .tile_m = 32,
                                  .tile_n = 32,
                                  .vector = 8,
                                  .group_m = 8,
                                  .cluster = GemmCluster::none,
                                  .resident = 1,
                                  .along_n = false,
                                  .swap = false,
                                  .programmatic = false}}
            .default_on(Target::Kind::host, kHostDefault)
            .values(&Gemm::body, {GemmBody::simt, GemmBody::mma, GemmBody::wgmma, GemmBody::tma,
                                  GemmBody::pingpong, GemmBody::stream})
            .values(&Gemm::cluster,
                    {GemmCluster::none, GemmCluster::two_m, GemmCluster::two_n,
                     GemmCluster::split_2, GemmCluster::split_3, GemmCluster::split_4})
            .values(&Gemm::along_n, {false, true})
            .values(&Gemm::swap, {false, true})
            .values(&Gemm::programmatic, {false, true})
            .values(&Gemm::tile_m, {4, 8, 16, 32, 64, 128})
            .values(&Gemm::tile_n, {2, 4, 8, 16, 32, 64, 128, 256})
            .values(&Gemm::vector, {8, 16}));
  else
    return constrained<T>(Space<Gemm, GemmProblem>{{.body = GemmBody::simt,
                                                    .block_m = 64,
                                                    .block_n = 64,
                                                    .block_k = 32,
                                                    .stages = 2,
                                                    .tile_m = 4,
                                                    .tile_n = 4,
                                                    .vector = 4,
                                                    .group_m = 8,
                                                    .cluster = GemmCluster::none,
                                                    .resident = 1,
                                                    .along_n = false,
                                                    .swap = false,
                                                    .programmatic = false}}
                              .default_on(Target::Kind::host, kHostDefault)
                              .values(&Gemm::body, {GemmBody::simt})
                              .values(&Gemm::tile_m, {1, 2, 4, 8})
                              .values(&Gemm::tile_n, {1, 2, 4, 8})
                              .values(&Gemm::vector, {4, 8, 16}));
}

// Rows of a box: none lies outside of a small array, because TMA takes longer over such rows.
int a_box(const GemmTma& t, const GemmProblem& p) {
  return std::min(t.swap ? t.copied_n() : t.copied_m(), p.m);
}
int b_box(const GemmTma& t, const GemmProblem& p) {
  return std::min(t.swap ? t.copied_m() : t.copied_n(), p.n);
}
int c_box(const GemmTma& t, const GemmProblem& p) { return std::min(t.swap ? t.block_n : 16, p.m); }

/// What one instruction of gemm_tma.cuh copies: rows of 128 bytes of A and B, and what a warp has of
/// C. With `swap` A's rows are the product's columns.
template <class T>
std::vector<TypedMapRule<Gemm, GemmProblem>> gemm_maps() {
  if constexpr (sizeof(T) != 2) {
    return {};
  } else {
    constexpr auto uses_tma = [](const Gemm& c) { return c.uses_tma(); };
    return {{.argument = 0,
             .map =
                 [](const Gemm& c, const GemmProblem& p) {
                   const GemmTma t = c.tma();
                   const int columns = t.store_columns();
                   return TensorMap::tiled<T>({.size = {p.n, p.m},
                                               .box = {columns, c_box(t, p)},
                                               .swizzle = columns == 64   ? Swizzle::bytes128
                                                          : columns == 32 ? Swizzle::bytes64
                                                                          : Swizzle::bytes32});
                 },
             .only_if = [](const Gemm& c) { return c.uses_tma() && c.split_k() == 1; }},
            {.argument = 1,
             .map =
                 [](const Gemm& c, const GemmProblem& p) {
                   const GemmTma t = c.tma();
                   return TensorMap::tiled<T>({.size = {p.k, p.m},
                                               .box = {GemmTma::kBoxK, a_box(t, p)},
                                               .swizzle = Swizzle::bytes128,
                                               .l2_bytes = 256});
                 },
             .only_if = uses_tma},
            {.argument = 2,
             .map =
                 [](const Gemm& c, const GemmProblem& p) {
                   const GemmTma t = c.tma();
                   return TensorMap::tiled<T>({.size = {p.k, p.n},
                                               .box = {GemmTma::kBoxK, b_box(t, p)},
                                               .swizzle = Swizzle::bytes128,
                                               .l2_bytes = 256});
                 },
             .only_if = uses_tma}};
  }
}

/// Sums of k products in another order, then a unit in the last place of T either way.
template <class T>
constexpr Tolerance kGemmTolerance{.relative = 1e-4, .absolute = 1e-3};
template <>
constexpr Tolerance kGemmTolerance<float16>{.relative = 2e-3, .absolute = 4e-3};
template <>
constexpr Tolerance kGemmTolerance<bfloat16>{.relative = 1.6e-2, .absolute = 4e-3};

}  // namespace

template <class T>
GemmKernel<T> gemm_kernel() {
  return {
      .name = "gemm",
      .source = {.file = templates_dir() / "gemm/gemm.cuh"},
      .entry = "kiln::templates::gemm",
      .config_type = "kiln::templates::Gemm",
      .types = {device_name<T>()},
      .space = gemm_space<T>(),
      .configs = [](const GemmProblem& p,
                    const DeviceLimits& d) { return gemm_configs(p, sizeof(T), d); },
      .launch =
          [](const Gemm& c, const GemmProblem& p, const DeviceLimits& d) {
            Launch launch{{c.grid(p, d.usable_multiprocessors())},
                          {static_cast<unsigned>(c.threads())},
                          c.shared_bytes(sizeof(T))};
            if (c.uses_tma()) launch.cluster.x = static_cast<unsigned>(c.tma().cluster());
            launch.programmatic = c.programmatic;
            return launch;
          },
      .maps = gemm_maps<T>(),
      .problem = [](T*, const T*, const T*, int m, int n, int k) { return GemmProblem{m, n, k}; },
      .relations = {{3, "m"}, {4, "n"}, {5, "k"}},
      .bucket = [](const GemmProblem& p) { return GemmProblem{row_bucket(p.m), p.n, p.k}; },
      .workload =
          [](const GemmProblem& p, Workload& w) {
            const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n),
                       k = static_cast<std::size_t>(p.k);
            w.output<T>(m * n).template input<T>(m * k).template input<T>(n * k);
            w.scalar(p.m).scalar(p.n).scalar(p.k);
          },
      .reference = gemm_reference<T>,
      .tolerance = kGemmTolerance<T>,
      .flops = [](const GemmProblem& p) { return 2.0 * p.m * p.n * p.k; },
      .bytes =
          [](const GemmProblem& p) {
            return (1.0 * p.m * p.k + 1.0 * p.n * p.k + 1.0 * p.m * p.n) *
                   static_cast<double>(sizeof(T));
          },
      .cost = [](const Gemm& c, const GemmProblem& p,
                 const DeviceLimits& d) { return gemm_cost(c, p, sizeof(T), registers(c), d); },
      .untuned_by_cost =
          [](const DeviceLimits& d) { return sizeof(T) == 2 && d.compute_capability == 90; }};
}

template GemmKernel<float> gemm_kernel();
template GemmKernel<float16> gemm_kernel();
template GemmKernel<bfloat16> gemm_kernel();

}  // namespace kiln::templates
