// Host half of gemm.hpp: space, launch, maps, workload. The space lives here and not in the header, so
// that a new value leaves the kernel's source, and with it every compiled binary, as it is.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/gemm/gemm_bucket.hpp"
#include "templates/gemm/gemm_configs.hpp"
#include "templates/gemm/gemm_cost.hpp"
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

template <class T, GemmTranspose op, class Problem>
constexpr Space<Gemm, Problem> constrained(Space<Gemm, Problem> space) {
  using P = const Problem&;
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
          "the body takes operands as they lie, and TMA copies 64 rows of one that lies across k",
          [](const Gemm& c, P, D) { return c.takes(op); })
      .where(
          "bodies fed by tensor maps need sm_90, and leading dimensions and strides of multiples "
          "of 16 bytes",
          [](const Gemm& c, P p, D d) {
            return !c.uses_tma() || (d.compute_capability == 90 && d.tensor_maps && p.k > 0 &&
                                     gemm_shape<op>(p).all_mappable());
          })
      .where(
          "bodies that store through tensor maps need an n of a multiple of 16 bytes",
          [](const Gemm& c, P p, D) { return !c.stores_by_map() || gemm_shape<op>(p).storable(); })
      .where(
          "the stream body takes at most block_m rows, and a k, lda and ldb that are multiples of "
          "8",
          [](const Gemm& c, P p, D d) {
            return c.body != GemmBody::stream ||
                   (p.m <= c.block_m && p.k > 0 && p.k % 8 == 0 &&
                    gemm_shape<op>(p).operands_mappable() &&
                    d.compute_capability >= (c.programmatic ? 90 : 80));
          })
      .where("the threads of a block fit the device, and are whole warps on a GPU",
             [](const Gemm& c, P, D d) {
               return c.threads() <= d.max_threads_per_block &&
                      (d.on_host() || c.threads() % d.warp_size == 0);
             })
      .where("the buffers of a block fit its shared memory",
             [](const Gemm& c, P, D d) {
               return c.shared_bytes(sizeof(T), op) <=
                      static_cast<unsigned>(d.shared_per_block_optin);
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
               const auto shape = gemm_shape<op>(p);
               return c.grid(shape.sizes(), d.usable_multiprocessors(), shape.batch) <=
                          d.max_grid.x &&
                      (!c.uses_tma() ||
                       1.0 * c.tma().tiles_m(p.m, p.n) * c.tma().tiles_n(p.m, p.n) * shape.batch <
                           2147483648.0);
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
                            .parts = 1,
                            .later = false,
                            .programmatic = false};

template <class T, GemmTranspose op, class Problem>
constexpr Space<Gemm, Problem> gemm_space() {
  if constexpr (sizeof(T) == 2)
    return constrained<T, op, Problem>(
        Space<Gemm, Problem>{{.body = GemmBody::mma,
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
                              .parts = 1,
                              .later = false,
                              .programmatic = false}}
            .default_on(Target::Kind::host, kHostDefault)
            .values(&Gemm::body, {GemmBody::simt, GemmBody::mma, GemmBody::wgmma, GemmBody::tma,
                                  GemmBody::pingpong, GemmBody::stream})
            .values(&Gemm::cluster,
                    {GemmCluster::none, GemmCluster::two_m, GemmCluster::two_n,
                     GemmCluster::split_2, GemmCluster::split_3, GemmCluster::split_4})
            .values(&Gemm::along_n, {false, true})
            .values(&Gemm::swap, {false, true})
            .values(&Gemm::parts, {1, 2, 4, 6, 8, 12, 16})
            .values(&Gemm::later, {false, true})
            .values(&Gemm::programmatic, {false, true})
            .values(&Gemm::tile_m, {4, 8, 16, 32, 64, 128})
            .values(&Gemm::tile_n, {2, 4, 8, 16, 32, 64, 128, 256})
            .values(&Gemm::vector, {8, 16}));
  else
    return constrained<T, op, Problem>(Space<Gemm, Problem>{{.body = GemmBody::simt,
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
                                                             .parts = 1,
                                                             .later = false,
                                                             .programmatic = false}}
                                           .default_on(Target::Kind::host, kHostDefault)
                                           .values(&Gemm::body, {GemmBody::simt})
                                           .values(&Gemm::tile_m, {1, 2, 4, 8})
                                           .values(&Gemm::tile_n, {1, 2, 4, 8})
                                           .values(&Gemm::vector, {4, 8, 16}));
}

// Rows of a box: none lies outside of a small array, because TMA takes longer over such rows.
template <bool batched>
int a_box(const GemmTma& t, GemmTranspose op, const GemmShape<batched>& p) {
  return a_across(op) ? t.block_k : std::min(t.swap ? t.copied_n() : t.copied_m(), p.m);
}
template <bool batched>
int b_box(const GemmTma& t, GemmTranspose op, const GemmShape<batched>& p) {
  return b_across(op) ? t.block_k : std::min(t.swap ? t.copied_m() : t.copied_n(), p.n);
}

/// What one instruction of gemm_tma.cuh copies of an array of `rows` rows in each batch, or of one
/// that all batches share.
template <class T, bool batched>
TensorMap box_of(const GemmShape<batched>& p, GemmStride row, GemmStride rows, GemmStride leading,
                 GemmStride stride, int columns, int high, Swizzle swizzle, int l2_bytes) {
  TensorMap::Tiled tiled{.size = {row, rows},
                         .stride = {leading},
                         .box = {columns, high},
                         .swizzle = swizzle,
                         .l2_bytes = l2_bytes};
  if constexpr (batched) {
    const bool many = p.batch > 1 && stride != 0;
    tiled.size.push_back(many ? p.batch : 1);
    tiled.stride.push_back(many ? stride : leading);
    tiled.box.push_back(1);
  }
  return TensorMap::tiled<T>(tiled);
}

/// Rows of 128 bytes of A and B, and what a warp has of C. With `swap` A's rows are the product's
/// columns.
template <class T, GemmTranspose op, class Problem>
std::vector<TypedMapRule<Gemm, Problem>> gemm_maps() {
  if constexpr (sizeof(T) != 2) {
    return {};
  } else {
    constexpr auto uses_tma = [](const Gemm& c) { return c.uses_tma(); };
    return {{.argument = 0,
             .map =
                 [](const Gemm& c, const Problem& problem) {
                   const auto p = gemm_shape<op>(problem);
                   const GemmTma t = c.tma();
                   const int columns = t.store_columns();
                   return box_of<T>(p, p.n, p.m, p.ldc, p.stride_c, columns,
                                    std::min(t.swap ? t.block_n : 16, p.m),
                                    columns == 64   ? Swizzle::bytes128
                                    : columns == 32 ? Swizzle::bytes64
                                                    : Swizzle::bytes32,
                                    0);
                 },
             .only_if = [](const Gemm& c) { return c.stores_by_map(); }},
            {.argument = 1,
             .map =
                 [](const Gemm& c, const Problem& problem) {
                   const auto p = gemm_shape<op>(problem);
                   const GemmTma t = c.tma();
                   const int rows = a_box(t, op, p);
                   return box_of<T>(p, p.a_row(op), p.a_rows(op), p.lda, p.stride_a, GemmTma::kBoxK,
                                    rows, Swizzle::bytes128, 256);
                 },
             .only_if = uses_tma},
            {.argument = 2,
             .map =
                 [](const Gemm& c, const Problem& problem) {
                   const auto p = gemm_shape<op>(problem);
                   const GemmTma t = c.tma();
                   const int rows = b_box(t, op, p);
                   return box_of<T>(p, p.b_row(op), p.b_rows(op), p.ldb, p.stride_b, GemmTma::kBoxK,
                                    rows, Swizzle::bytes128, 256);
                 },
             .only_if = uses_tma}};
  }
}

/// Tiles of all batches, for bodies with tensor maps.
std::size_t tiles_of(const Gemm& c, const GemmShape<true>& p) {
  const GemmTma t = c.tma();
  return std::size_t{t.tiles_m(p.m, p.n)} * t.tiles_n(p.m, p.n) *
         static_cast<std::size_t>(std::max(p.batch, 0));
}

/// Sums of k products in another order, then a unit in the last place of T either way.
template <class T>
constexpr Tolerance kGemmTolerance{.relative = 1e-4, .absolute = 1e-3};
template <>
constexpr Tolerance kGemmTolerance<float16>{.relative = 2e-3, .absolute = 4e-3};
template <>
constexpr Tolerance kGemmTolerance<bfloat16>{.relative = 1.6e-2, .absolute = 4e-3};

/// A problem of one batch that has as many tiles: batches are rows, or with few rows or `swap`
/// columns.
GemmProblem unbatched(const Gemm& c, const GemmShape<true>& p) {
  const auto stacked = [&](int size, int block) {
    const double all = std::ceil(1.0 * size / block) * block * p.batch;
    return static_cast<int>(std::min(all, 2147483647.0));
  };
  if (p.batch <= 1) return p.sizes();
  if (c.body == GemmBody::stream) return {p.m, stacked(p.n, c.block_n), p.k};
  return c.swap ? GemmProblem{p.m, stacked(p.n, c.block_m), p.k}
                : GemmProblem{stacked(p.m, c.block_m), p.n, p.k};
}

/// An array's rows, if `Rows` can say them for all batches: with gaps of one kind.
std::optional<Rows> rows_of(int batch, int rows, int row, GemmStride leading, GemmStride stride) {
  const auto size = [](GemmStride n) { return static_cast<std::size_t>(n); };
  if (batch == 0) return Rows{};
  if (batch == 1 || stride == 0) return Rows{size(rows), size(row), size(leading)};
  if (stride == rows * leading) return Rows{size(batch) * size(rows), size(row), size(leading)};
  if (leading == row && stride > rows * leading)
    return Rows{size(batch), size(rows) * size(row), size(stride)};
  return std::nullopt;
}

template <class T, GemmTranspose op>
void fill(const GemmShape<true>& p, Workload& w) {
  const auto count = [](GemmStride span) { return static_cast<std::size_t>(span); };
  const auto input = [&](int rows, int row, GemmStride leading, GemmStride stride,
                         GemmStride span) {
    if (const auto listed = rows_of(p.batch, rows, row, leading, stride))
      w.input<T>(*listed);
    else
      w.input<T>(count(span));
  };
  if (const auto listed = rows_of(p.batch, p.m, p.n, p.ldc, p.stride_c))
    w.output<T>(*listed);
  else
    w.in_out<T>(count(p.c_span()));  // what lies between is as it was
  input(p.a_rows(op), p.a_row(op), p.lda, p.stride_a, p.a_span(op));
  input(p.b_rows(op), p.b_row(op), p.ldb, p.stride_b, p.b_span(op));
  w.scalar(p.m).scalar(p.n).scalar(p.k);
}

/// What a GEMM is by the kind of its problem.
template <class Problem>
struct Kind;
template <>
struct Kind<GemmProblem> {
  static constexpr const char* kEntry = "gemm";
  static std::vector<ArgumentIsField> relations() { return {{3, "m"}, {4, "n"}, {5, "k"}}; }
  static void scalars(const GemmProblem&, Workload&) {}
  static std::map<std::string, std::int64_t> small() {
    return {{"m", 192}, {"n", 200}, {"k", 136}};
  }
};
template <>
struct Kind<GemmStridedProblem> {
  static constexpr const char* kEntry = "gemm_strided";
  static std::vector<ArgumentIsField> relations() {
    return {{3, "m"},   {4, "n"},     {5, "k"},         {6, "ldc"},       {7, "lda"},
            {8, "ldb"}, {9, "batch"}, {10, "stride_c"}, {11, "stride_a"}, {12, "stride_b"}};
  }
  static void scalars(const GemmStridedProblem& p, Workload& w) {
    w.scalar(p.ldc).scalar(p.lda).scalar(p.ldb).scalar(p.batch);
    w.scalar(p.stride_c).scalar(p.stride_a).scalar(p.stride_b);
  }
  static std::map<std::string, std::int64_t> small() {
    constexpr std::int64_t kLeading = 208;  // more than any row
    return {{"m", 192},
            {"n", 200},
            {"k", 136},
            {"ldc", kLeading},
            {"lda", kLeading},
            {"ldb", kLeading},
            {"batch", 2},
            {"stride_c", 192 * kLeading},
            {"stride_a", 200 * kLeading},
            {"stride_b", 200 * kLeading}};
  }
};

}  // namespace

template <class T, GemmTranspose op, class Problem>
Kernel<Gemm, Problem, void()> gemm_base() {
  using K = Kind<Problem>;
  constexpr const char* kSuffixes[] = {"", "_nn", "_tn", "_tt"};
  return {.name = std::string(K::kEntry) + kSuffixes[static_cast<int>(op)],
          .source = {.file = templates_dir() / "gemm/gemm.cuh"},
          .entry = std::string("kiln::templates::") + K::kEntry,
          .config_type = "kiln::templates::Gemm",
          .types = {device_name<T>()},
          .space = gemm_space<T, op, Problem>(),
          .configs =
              [](const Problem& p, const DeviceLimits& d) {
                return gemm_configs(op, gemm_shape<op>(p).general(), sizeof(T), d);
              },
          .launch =
              [](const Gemm& c, const Problem& problem, const DeviceLimits& d) {
                const auto p = gemm_shape<op>(problem);
                Launch launch{{c.grid(p.sizes(), d.usable_multiprocessors(), p.batch)},
                              {static_cast<unsigned>(c.threads())},
                              c.shared_bytes(sizeof(T), op)};
                if (c.uses_tma()) launch.cluster.x = static_cast<unsigned>(c.tma().cluster());
                launch.programmatic = c.programmatic;
                return launch;
              },
          .maps = gemm_maps<T, op, Problem>(),
          .workspace = {.size =
                            [](const Gemm& c, const Problem& p, const DeviceLimits&) {
                              const auto tiles = tiles_of(c, gemm_shape<op>(p).general());
                              return WorkspaceSize{.bytes = tiles * c.tma().tile_scratch(),
                                                   .semaphores = c.later ? 0 : tiles};
                            },
                        .only_if = [](const Gemm& c) { return c.parts > 1; }},
          .steps = {{.entry = std::string("kiln::templates::") + K::kEntry + "_add",
                     .launch =
                         [](const Gemm& c, const Problem& p) {
                           const auto tiles = tiles_of(c, gemm_shape<op>(p).general());
                           return Launch{{c.tma().add_grid(tiles)}, {GemmTma::kAddThreads}};
                         },
                     .only_if = [](const Gemm& c) { return c.later; }}},
          .relations = K::relations(),
          .bucket = [](const Problem& p) { return tuned_as<T, op>(p); },
          .workload =
              [](const Problem& p, Workload& w) {
                fill<T, op>(gemm_shape<op>(p).general(), w);
                K::scalars(p, w);
              },
          .device_reference = DeviceReference{.config = "", .problem = K::small()},
          .tolerance = kGemmTolerance<T>,
          .flops = [](const Problem& p) { return 2.0 * p.m * p.n * p.k * gemm_shape<op>(p).batch; },
          .bytes =
              [](const Problem& p) {
                return gemm_shape<op>(p).traffic() * static_cast<double>(sizeof(T));
              },
          .cost =
              [](const Gemm& c, const Problem& p, const DeviceLimits& d) {
                const auto shape = gemm_shape<op>(p).general();
                return gemm_cost(c, unbatched(c, shape), shape.traffic(), sizeof(T), registers(c),
                                 d);
              },
          .untuned_by_cost =
              [](const DeviceLimits& d) { return sizeof(T) == 2 && d.compute_capability == 90; }};
}

#define KILN_GEMM(T, op)                                                                     \
  template Kernel<Gemm, GemmProblem, void()> gemm_base<T, GemmTranspose::op, GemmProblem>(); \
  template Kernel<Gemm, GemmStridedProblem, void()>                                          \
  gemm_base<T, GemmTranspose::op, GemmStridedProblem>();
#define KILN_GEMMS(T) KILN_GEMM(T, nt) KILN_GEMM(T, nn) KILN_GEMM(T, tn) KILN_GEMM(T, tt)
KILN_GEMMS(float)
KILN_GEMMS(float16)
KILN_GEMMS(bfloat16)
#undef KILN_GEMMS
#undef KILN_GEMM

}  // namespace kiln::templates
