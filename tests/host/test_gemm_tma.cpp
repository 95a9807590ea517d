// The shipped GEMM for Hopper on the host: schedules, clusters, splits and parts of k, ragged
// edges, operands that lie across k, padded rows, batches and epilogues.
#include <algorithm>
#include <cmath>
#include <optional>

#include "gemm_tma_test.hpp"
#include "kiln/workspace.cuh"
#include "templates/gemm/shared/gemm_problem.hpp"

using namespace host_test;

namespace {

using kiln::templates::a_across;
using kiln::templates::b_across;
using kiln::templates::GemmSchedule;
using kiln::templates::GemmShape;
using Halves = std::vector<std::uint16_t>;

constexpr GemmTranspose kAll[] = {GemmTranspose::nt, GemmTranspose::nn, GemmTranspose::tn,
                                  GemmTranspose::tt};

/// What a config launches.
struct Entries {
  Entries(const GemmTma& c, GemmTranspose op, bool batched, const std::string& epilogue)
      : own("#include <gemm/tma/gemm_tma.cuh>\n", entry_of(c, op, batched, epilogue)) {
    if (c.later)
      step.emplace("#include <gemm/tma/gemm_tma.cuh>\n",
                   entry_of(c, op, batched, epilogue, "gemm_tma_step"));
  }
  Kernel own;
  std::optional<Kernel> step;
};

constexpr std::uint16_t kNan = 0x7fff;

/// An operand's logical values [batch][row of the product][k], and the array in which they lie.
struct Operand {
  Halves values, array;
};

/// `special`: with a NaN in one row, an infinity of each sign in others, and a row of zeros.
Operand operand_of(bool across, int batch, int rows, int k, long leading, long stride,
                   unsigned seed, bool special = false) {
  Operand o{random_bf16(std::size_t(batch) * rows * k, seed), {}};
  if (special) {
    const auto at = [&](int row) { return o.values.begin() + row % rows * k; };
    at(int(seed) + 1)[k - 1] = kNan;
    at(int(seed) + 3)[0] = 0x7f80;
    at(rows - 1)[k / 2] = 0xff80;
    std::fill_n(at(int(seed) + 5), k, std::uint16_t(0));
  }
  const long high = across ? k : rows;
  o.array.assign(std::size_t((batch - 1) * stride + high * leading), kNan);
  for (int z = 0; z < batch; ++z)
    for (int i = 0; i < rows; ++i)
      for (int l = 0; l < k; ++l) {
        auto& value = o.values[(std::size_t(z) * rows + i) * k + l];
        if (stride == 0) value = o.values[std::size_t(i) * k + l];
        o.array[std::size_t(z * stride + (across ? l * leading + i : i * leading + l))] = value;
      }
  return o;
}

HostTensorMap map_of(const void* array, const std::vector<std::uint64_t>& size,
                     const std::vector<unsigned>& box, long leading, long stride, int swizzle) {
  HostTensorMap map = tensor_map(array, HostElement::bf16, size, box, unsigned(swizzle));
  map.stride[0] = std::uint64_t(leading) * 2;
  if (size.size() > 2) map.stride[1] = std::uint64_t(stride) * 2;
  return map;
}

/// Stands for C's array among an epilogue's parameters; C holds `values` before the launch.
struct InPlace {
  const Halves& values;
};
/// An array that lies as C does, and that configs may fetch by a map.
struct Fetched {
  const Halves& values;
};
void begin_with(auto, Halves&) {}
void begin_with(InPlace parameter, Halves& out) { out = parameter.values; }

/// What an array that lies as C does is fetched by.
template <bool batched>
HostTensorMap fetched_map(const GemmTma& c, const GemmShape<batched>& p, const void* array) {
  std::vector<std::uint64_t> extent{std::uint64_t(p.n), std::uint64_t(p.m)};
  std::vector<unsigned> box{unsigned(c.fetched_columns()),
                            unsigned(std::min(c.fetched_rows(), p.m))};
  if (batched) {
    extent.push_back(std::uint64_t(p.batch));
    box.push_back(1);
  }
  return map_of(array, extent, box, p.ldc, p.stride_c, unsigned(c.fetched_columns() * 2));
}
/// Calls act(arguments...) with what a launch gets for the parameters.
template <bool batched, class Act>
void with_given(const GemmTma&, const GemmShape<batched>&, const Halves&, const Act& act) {
  act();
}
template <bool batched, class Act, class First, class... Rest>
void with_given(const GemmTma& c, const GemmShape<batched>& p, const Halves& out, const Act& act,
                First first, Rest... rest) {
  const auto more = [&](const auto& given) {
    with_given(c, p, out, [&](const auto&... others) { act(given, others...); }, rest...);
  };
  if constexpr (std::is_same_v<First, InPlace> || std::is_same_v<First, Fetched>) {
    const Halves* array = &out;
    if constexpr (std::is_same_v<First, Fetched>) array = &first.values;
    if (c.fetches())
      more(fetched_map(c, p, array->data()));
    else
      more(array->data());
  } else {
    more(first);
  }
}

bool same_or_nans(std::uint16_t x, std::uint16_t y) {
  return x == y || ((x & 0x7fff) > 0x7f80 && (y & 0x7fff) > 0x7f80);
}

/// `finish` is what the epilogue makes of a sum.
template <bool special = false, bool batched, class Finish, class... Parameters>
void check_product(const Entries& entries, const GemmTma& c, GemmTranspose op,
                   const GemmShape<batched>& p, const Finish& finish, Parameters... parameters) {
  CAPTURE(entry_of(c, op, batched, ""), p.m, p.n, p.k, p.ldc, p.lda, p.ldb, p.batch, p.stride_a);
  const Operand a = operand_of(a_across(op), p.batch, p.m, p.k, p.lda, p.stride_a, 3, special);
  const Operand b = operand_of(b_across(op), p.batch, p.n, p.k, p.ldb, p.stride_b, 4, special);
  const std::size_t size = std::size_t((p.batch - 1) * p.stride_c + p.m * p.ldc);
  Halves out(size, 0xffff);
  (begin_with(parameters, out), ...);
  Halves expected = out;

  const auto map = [&](const void* array, bool across, int rows, long leading, long stride,
                       int copied) {
    std::vector<std::uint64_t> extent{std::uint64_t(across ? rows : p.k),
                                      std::uint64_t(across ? p.k : rows)};
    std::vector<unsigned> box{64, unsigned(across ? c.block_k : std::min(copied, rows))};
    if (batched) {
      extent.push_back(stride == 0 ? 1 : std::uint64_t(p.batch));
      box.push_back(1);
    }
    return map_of(array, extent, box, leading, stride, 128);
  };
  const HostTensorMap map_a = map(a.array.data(), a_across(op), p.m, p.lda, p.stride_a,
                                  c.swap ? c.copied_n() : c.copied_m());
  const HostTensorMap map_b = map(b.array.data(), b_across(op), p.n, p.ldb, p.stride_b,
                                  c.swap ? c.copied_m() : c.copied_n());
  const std::size_t tiles = std::size_t(c.tiles_m(p.m, p.n)) * c.tiles_n(p.m, p.n) * p.batch;
  TileWorkspace shared(c, tiles);
  const kiln::Workspace workspace = shared.argument();
  const auto launch = [&](const auto& where) {
    const auto all = [&](const auto&... given) {
      entries.own.in_clusters({unsigned(c.cluster())}, {c.grid(p.m, p.n, 3, p.batch)},
                              {unsigned(c.threads())}, c.shared_bytes(), where, map_a, map_b, p,
                              given..., workspace);
      if (entries.step)
        entries.step->in_clusters({1}, {c.add_grid(tiles)}, {unsigned(c.kAddThreads)}, 0, where,
                                  map_a, map_b, p, given..., workspace);
    };
    with_given(c, p, out, all, parameters...);
  };
  if (c.store_tma) {
    std::vector<std::uint64_t> extent{std::uint64_t(p.n), std::uint64_t(p.m)};
    std::vector<unsigned> box{unsigned(c.store_columns()),
                              unsigned(std::min(c.swap ? c.block_n : 16, p.m))};
    if (batched) {
      extent.push_back(std::uint64_t(p.batch));
      box.push_back(1);
    }
    launch(map_of(out.data(), extent, box, p.ldc, p.stride_c, c.store_span()));
  } else {
    launch(out.data());
  }

  for (int z = 0; z < p.batch; ++z)
    for (int i = 0; i < p.m; ++i)
      for (int j = 0; j < p.n; ++j) {
        float sum = 0;
        for (int l = 0; l < p.k; ++l)
          sum += from_bf16(a.values[(std::size_t(z) * p.m + i) * p.k + l]) *
                 from_bf16(b.values[(std::size_t(z) * p.n + j) * p.k + l]);
        const auto at = std::size_t(z * p.stride_c + i * p.ldc + j);
        expected[at] = bf16(finish(sum, i, j, at));
      }
  std::size_t wrong = 0;  // elements between rows and batches are left alone
  for (std::size_t i = 0; i < size; ++i)
    wrong += special ? !same_or_nans(out[i], expected[i]) : out[i] != expected[i];
  CHECK(wrong == 0);
  CHECK(shared.ready_again());
}

float as_it_is(float sum, int, int, std::size_t) { return sum; }

GemmShape<false> tight(GemmTranspose op, int m, int n, int k) {
  const kiln::templates::GemmProblem p{m, n, k};
  switch (op) {
    case GemmTranspose::nt:
      return kiln::templates::gemm_shape<GemmTranspose::nt>(p);
    case GemmTranspose::nn:
      return kiln::templates::gemm_shape<GemmTranspose::nn>(p);
    case GemmTranspose::tn:
      return kiln::templates::gemm_shape<GemmTranspose::tn>(p);
    default:
      return kiln::templates::gemm_shape<GemmTranspose::tt>(p);
  }
}

/// Rows of odd lengths with gaps, and batches; with one of B for all of them if `shared`. What is
/// stored through a map has whole pieces of 16 bytes in a row.
GemmShape<true> strided(const GemmTma& c, GemmTranspose op, int m, int n, int k, int batch,
                        bool shared) {
  if (c.store_tma) n = (n + 7) / 8 * 8;
  const auto padded = [](int row) { return long{(row + 7) / 8 * 8 + 16}; };
  GemmShape<true> p{m, n, k, padded(n), 0, 0, batch, 0, 0, 0};
  p.lda = padded(p.a_row(op));
  p.ldb = padded(p.b_row(op));
  p.stride_c = m * p.ldc + 24;
  p.stride_a = p.a_rows(op) * p.lda;
  p.stride_b = shared ? 0 : p.b_rows(op) * p.ldb + 8;
  return p;
}

constexpr auto kCooperative = GemmSchedule::cooperative, kPingpong = GemmSchedule::pingpong;
constexpr GemmTma kConfigs[] = {
    {kCooperative, 128, 64, 64, 3, 2, 1, 1, 1, 1, false, 4, false, false, false, true, false},
    {kCooperative, 128, 48, 128, 2, 2, 2, 1, 1, 1, false, 2, true, true, false, true, true},
    {kPingpong, 64, 64, 64, 4, 2, 1, 2, 1, 1, false, 1, false, true, false, true, false},
    {kCooperative, 64, 24, 64, 4, 1, 1, 1, 1, 1, false, 3, false, true, true, true, false},
    {kCooperative, 64, 40, 64, 2, 1, 1, 1, 4, 1, false, 1, false, false, false, false, false},
    {kCooperative, 128, 32, 64, 2, 2, 2, 2, 1, 1, false, 2, true, true, true, false, false},
    {kCooperative, 64, 64, 64, 2, 1, 1, 1, 2, 1, false, 1, false, false, true, false, false},
    {kCooperative, 128, 24, 64, 3, 2, 1, 1, 1, 3, false, 1, false, false, false, false, true},
    {kCooperative, 64, 40, 64, 2, 1, 1, 1, 1, 4, true, 2, true, false, true, false, false},
};

/// A tile's residual takes two stages, the second of which is not full.
constexpr GemmTma kTwoFetchedStages[] = {
    {kPingpong, 128, 144, 64, 3, 2, 1, 1, 1, 1, false, 1, false, true, false, true, false},
    {kCooperative, 256, 96, 64, 3, 2, 1, 1, 1, 1, false, 1, false, true, true, true, false},
};

bool takes(const GemmTma& c, GemmTranspose op) {
  return c.swap ? c.copies(b_across(op), a_across(op)) : c.copies(a_across(op), b_across(op));
}

}  // namespace

TEST_CASE("the GEMM for Hopper computes the product of the reference", "[host][gemm_tma][long]") {
  for (const GemmTma& c : kConfigs) {
    REQUIRE(c.fits());
    for (const GemmTranspose op : kAll) {
      if (!takes(c, op)) continue;
      const Entries entries(c, op, false, "Nothing");
      check_product(entries, c, op, tight(op, 128, 64, 64), as_it_is);
      check_product(entries, c, op, tight(op, 200, 136, 328), as_it_is);
      check_product(entries, c, op, tight(op, 24, 8, 16), as_it_is);
    }
  }
}

TEST_CASE("the GEMM for Hopper: NaNs, infinities and zeros reach their rows and columns alone",
          "[host][gemm_tma]") {
  for (const GemmTma& c : kConfigs) {
    const Entries entries(c, GemmTranspose::nt, false, "Nothing");
    // Ragged: what lies outside of the arrays counts as zeros, which must meet no infinity.
    check_product<true>(entries, c, GemmTranspose::nt, tight(GemmTranspose::nt, 70, 72, 200),
                        as_it_is);
  }
}

TEST_CASE("the GEMM for Hopper walks padded rows and batches", "[host][gemm_tma][long]") {
  for (const GemmTma& c : kConfigs)
    for (const GemmTranspose op : kAll) {
      if (!takes(c, op)) continue;
      const Entries entries(c, op, true, "Nothing");
      check_product(entries, c, op, strided(c, op, 131, 77, 99, 3, false), as_it_is);
      check_product(entries, c, op, strided(c, op, 1, 33, 65, 4, true), as_it_is);
      check_product(entries, c, op, strided(c, op, 70, 129, 17, 1, false), as_it_is);
    }
}

TEST_CASE("the GEMM for Hopper applies an epilogue at each element's place",
          "[host][gemm_tma][long]") {
  const std::string epilogue =
      "Chain<kiln::epilogue::Bias<kiln::bfloat16>, kiln::epilogue::Scale, "
      "kiln::epilogue::RowBias<kiln::bfloat16>, kiln::epilogue::Residual<kiln::bfloat16>, "
      "kiln::epilogue::Relu>, const __nv_bfloat16*, float, const __nv_bfloat16*, "
      "kiln::templates::Fetched<__nv_bfloat16>";
  for (const GemmTma& c : kConfigs) {
    const GemmTranspose op = GemmTranspose::nt;
    const auto check = [&](const auto& p) {
      constexpr bool kBatched = std::decay_t<decltype(p)>::kBatched;
      const Entries entries(c, op, kBatched, epilogue);
      const Halves bias = random_bf16(std::size_t(p.n), 5), rows = random_bf16(std::size_t(p.m), 6),
                   residual = random_bf16(std::size_t((p.batch - 1) * p.stride_c + p.m * p.ldc), 7);
      const auto finish = [&](float sum, int i, int j, std::size_t at) {
        const float all = (sum + from_bf16(bias[std::size_t(j)])) * 0.5f +
                          from_bf16(rows[std::size_t(i)]) + from_bf16(residual[at]);
        return all < 0 ? 0.0f : all;
      };
      check_product(entries, c, op, p, finish, bias.data(), 0.5f, rows.data(), Fetched{residual});
    };
    check(tight(op, 200, 136, 72));
    check(strided(c, op, 131, 77, 99, 2, false));
  }
}

// Tiles at the edge begin earlier, and elements are computed twice.
TEST_CASE("the GEMM for Hopper may repeat an epilogue that does not read C",
          "[host][gemm_tma][long]") {
  const std::string epilogue =
      "Chain<kiln::epilogue::Bias<kiln::bfloat16>, kiln::epilogue::Scale, "
      "kiln::epilogue::RowBias<kiln::bfloat16>, kiln::epilogue::Relu>, const __nv_bfloat16*, "
      "float, const __nv_bfloat16*";
  for (const GemmTma& c : kConfigs) {
    const auto check = [&](const auto& p) {
      constexpr bool kBatched = std::decay_t<decltype(p)>::kBatched;
      const Entries entries(c, GemmTranspose::nt, kBatched, epilogue);
      const Halves bias = random_bf16(std::size_t(p.n), 5), rows = random_bf16(std::size_t(p.m), 6);
      const auto finish = [&](float sum, int i, int j, std::size_t) {
        const float all =
            (sum + from_bf16(bias[std::size_t(j)])) * 0.5f + from_bf16(rows[std::size_t(i)]);
        return all < 0 ? 0.0f : all;
      };
      check_product(entries, c, GemmTranspose::nt, p, finish, bias.data(), 0.5f, rows.data());
    };
    check(tight(GemmTranspose::nt, 200, 136, 72));
    check(strided(c, GemmTranspose::nt, 131, 77, 99, 2, false));
  }
}

TEST_CASE("the GEMM for Hopper adds a residual that is C itself", "[host][gemm_tma]") {
  const std::string epilogue = "Residual<kiln::bfloat16>, kiln::templates::Fetched<__nv_bfloat16>";
  const auto check_config = [&](const GemmTma& c) {
    const auto check = [&](const auto& p) {
      constexpr bool kBatched = std::decay_t<decltype(p)>::kBatched;
      const Entries entries(c, GemmTranspose::nt, kBatched, epilogue);
      const Halves before = random_bf16(std::size_t((p.batch - 1) * p.stride_c + p.m * p.ldc), 7);
      const auto finish = [&](float sum, int, int, std::size_t at) {
        return sum + from_bf16(before[at]);
      };
      check_product(entries, c, GemmTranspose::nt, p, finish, InPlace{before});
    };
    check(tight(GemmTranspose::nt, 200, 136, 72));
    check(strided(c, GemmTranspose::nt, 131, 77, 99, 2, false));
  };
  for (const GemmTma& c : kConfigs) check_config(c);
  for (const GemmTma& c : kTwoFetchedStages) {
    REQUIRE(c.fits());
    REQUIRE(c.fetched_stages() == 2);
    check_config(c);
  }
}
