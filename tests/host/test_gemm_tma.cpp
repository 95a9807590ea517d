// The shipped GEMM for Hopper on the host: schedules, clusters, splits of k and ragged edges.
#include "hopper_test.hpp"
#include "templates/gemm/gemm_tma.hpp"

using namespace host_test;

namespace {

using kiln::templates::GemmSchedule;
using kiln::templates::GemmTma;

/// How the arrays lie: [rows][k], or across, [k][rows].
struct Across {
  bool a = false, b = false;
};

std::string entry_of(const GemmTma& c, Across across) {
  const auto flag = [](bool b) { return std::string(b ? "true" : "false"); };
  std::string text = "kiln::templates::gemm_tma<kiln::templates::GemmTma{kiln::templates::";
  text +=
      c.schedule == GemmSchedule::pingpong ? "GemmSchedule::pingpong" : "GemmSchedule::cooperative";
  for (int value : {c.block_m, c.block_n, c.block_k, c.stages, c.consumers, c.cluster_m,
                    c.cluster_n, c.split_k, c.group})
    text += ", " + std::to_string(value);
  for (bool value : {c.along_n, c.persistent, c.swap, c.store_tma, c.programmatic})
    text += ", " + flag(value);
  const auto lies = [](bool is_across) {
    return std::string(", kiln::hopper::Lies::") + (is_across ? "across" : "along_k");
  };
  return text + "}, __nv_bfloat16, kiln::templates::StoreSum" + lies(across.a) + lies(across.b) +
         ">";
}

std::vector<std::uint16_t> transposed(const std::vector<std::uint16_t>& values, std::size_t rows) {
  const std::size_t columns = values.size() / rows;
  std::vector<std::uint16_t> result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    result[i % columns * rows + i / columns] = values[i];
  return result;
}

void check_product(const Kernel& kernel, const GemmTma& c, Across across, int m, int n, int k) {
  CAPTURE(entry_of(c, across), m, n, k);
  const auto a = random_bf16(std::size_t(m) * k, 3), b = random_bf16(std::size_t(n) * k, 4);
  std::vector<std::uint16_t> out(std::size_t(m) * n, 0xffff);
  const auto map = [](const void* array, int columns, int rows, int box_columns, int box_rows,
                      int swizzle) {
    return tensor_map(array, HostElement::bf16, {std::uint64_t(columns), std::uint64_t(rows)},
                      {unsigned(box_columns), unsigned(box_rows)}, unsigned(swizzle));
  };
  const auto operand = [&](const std::vector<std::uint16_t>& array, bool is_across, int rows,
                           int copied) {
    return is_across ? map(array.data(), rows, k, 64, c.block_k, 128)
                     : map(array.data(), k, rows, 64, std::min(copied, rows), 128);
  };
  const auto in_a = across.a ? transposed(a, m) : a, in_b = across.b ? transposed(b, n) : b;
  const HostTensorMap map_a = operand(in_a, across.a, m, c.swap ? c.copied_n() : c.copied_m());
  const HostTensorMap map_b = operand(in_b, across.b, n, c.swap ? c.copied_m() : c.copied_n());
  const unsigned grid = c.grid(m, n, 3);
  const char nothing = 0;  // the epilogue
  const auto launch = [&](const auto& where) {
    kernel.in_clusters({unsigned(c.cluster())}, {grid}, {unsigned(c.threads())}, c.shared_bytes(),
                       where, map_a, map_b, m, n, k, nothing);
  };
  if (c.store_tma)
    launch(map(out.data(), n, m, c.store_columns(), c.swap ? c.block_n : 16,
               c.store_columns() * c.kElement));
  else
    launch(out.data());
  unsigned wrong = 0;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l)
        sum += from_bf16(a[std::size_t(i) * k + l]) * from_bf16(b[std::size_t(j) * k + l]);
      wrong += out[std::size_t(i) * n + j] != bf16(sum);
    }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("the GEMM for Hopper computes the product of the reference", "[host][gemm_tma]") {
  constexpr auto cooperative = GemmSchedule::cooperative, pingpong = GemmSchedule::pingpong;
  for (const GemmTma& c : {
           GemmTma{cooperative, 128, 64, 64, 3, 2, 1, 1, 1, 4, false, false, false, true, false},
           GemmTma{cooperative, 128, 48, 128, 2, 2, 2, 1, 1, 2, true, true, false, true, true},
           GemmTma{pingpong, 64, 64, 64, 4, 2, 1, 2, 1, 1, false, true, false, true, false},
           GemmTma{cooperative, 64, 24, 64, 4, 1, 1, 1, 1, 3, false, true, true, true, false},
           GemmTma{cooperative, 64, 40, 64, 2, 1, 1, 1, 4, 1, false, false, false, false, false},
           GemmTma{cooperative, 128, 32, 64, 2, 2, 2, 2, 1, 2, true, true, true, false, false},
       }) {
    REQUIRE(c.fits());
    for (const Across across : {Across{}, {true, false}, {false, true}, {true, true}}) {
      // Rows and columns that lie across k are copied 64 at a time.
      const bool rows = c.swap ? across.b : across.a, columns = c.swap ? across.a : across.b;
      if ((rows && c.copied_m() % 64 != 0) || (columns && c.copied_n() % 64 != 0)) continue;
      Kernel kernel("#include <gemm/gemm_tma.cuh>\n", entry_of(c, across));
      check_product(kernel, c, across, 128, 64, 64);
      check_product(kernel, c, across, 200, 136, 328);
      check_product(kernel, c, across, 24, 8, 16);
    }
  }
}
