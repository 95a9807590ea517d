// What tests of the shipped GEMM for Hopper on the host share.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "hopper_test.hpp"
#include "kiln/types.hpp"
#include "kiln/workspace.cuh"
#include "templates/gemm/grouped/gemm_grouped.hpp"
#include "templates/gemm/shared/gemm_problem.hpp"
#include "templates/gemm/tma/gemm_tma.hpp"

namespace host_test {

using kiln::templates::GemmSchedule;
using kiln::templates::GemmTma;
using kiln::templates::GemmTranspose;
using kiln::templates::GroupLayout;

/// The text with which kernels are instantiated.
inline std::string text_of(const GemmTma& c) {
  const auto flag = [](bool b) { return std::string(b ? "true" : "false"); };
  std::string text = "kiln::templates::GemmTma{kiln::templates::";
  text +=
      c.schedule == GemmSchedule::pingpong ? "GemmSchedule::pingpong" : "GemmSchedule::cooperative";
  for (int value : {c.block_m, c.block_n, c.block_k, c.stages, c.consumers, c.cluster_m,
                    c.cluster_n, c.split_k, c.parts})
    text += ", " + std::to_string(value);
  text += ", " + flag(c.later) + ", " + std::to_string(c.group);
  for (bool value : {c.along_n, c.persistent, c.swap, c.store_tma, c.programmatic})
    text += ", " + flag(value);
  return text + ", kiln::templates::GemmOperands(" + std::to_string(static_cast<int>(c.operands)) +
         "), " + flag(c.few_scales) + "}";
}

/// Rows of A or of B, k along each, as they are copied; `batches`: 0, or how many such arrays.
inline HostTensorMap operand_map(const GemmTma& c, HostElement type, const void* array, bool of_b,
                                 int k, int rows, std::size_t batches = 0) {
  const int copied = of_b != c.swap ? c.copied_n() : c.copied_m();
  std::vector<std::uint64_t> extent{std::uint64_t(k), std::uint64_t(rows)};
  std::vector<unsigned> box{unsigned(c.box_k()), unsigned(std::min(copied, rows))};
  if (batches > 0) {
    extent.push_back(batches);
    box.push_back(1);
  }
  return tensor_map(array, type, extent, box, 128);
}

/// Quarters from -2 to 2.
inline std::vector<kiln::float8_e4m3> quarters(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<kiln::float8_e4m3> values(count);
  for (kiln::float8_e4m3& value : values)
    value = kiln::float8_e4m3(static_cast<float>(static_cast<int>(random() % 17) - 8) / 4.0f);
  return values;
}

/// The group of each row of a grouped GEMM, -1 for those of none. `sizes`: counts of groups that
/// have room for m rows each, if masked, else ends.
inline std::vector<int> groups_of_rows(const std::vector<int>& sizes, int m, GroupLayout layout,
                                       int row_alignment) {
  const bool masked = layout == GroupLayout::masked;
  std::vector<int> owner(std::size_t(m) * (masked ? sizes.size() : 1), -1);
  for (std::size_t g = 0, begin = 0; g < sizes.size(); ++g) {
    std::size_t end = std::size_t(std::clamp(sizes[g], 0, m));
    if (masked) begin = g * std::size_t(m), end += begin;
    const auto step = std::size_t(row_alignment);
    if (!masked) begin += (step - begin % step) % step;
    for (; begin < end; ++begin) owner[begin] = int(g);
  }
  return owner;
}

/// As kernels name it.
inline std::string text_of(GroupLayout layout) {
  return "kiln::templates::GroupLayout(" + std::to_string(static_cast<int>(layout)) + ")";
}

/// C in bf16, [m][n] without gaps, as it is stored.
inline HostTensorMap store_map(const GemmTma& c, void* array, int m, int n) {
  return tensor_map(array, HostElement::bf16, {std::uint64_t(n), std::uint64_t(m)},
                    {unsigned(c.store_columns()), unsigned(std::min(c.swap ? c.block_n : 16, m))},
                    unsigned(c.store_span()));
}

/// What blocks that share k need besides the arguments: scratch, full of NaNs, and semaphores.
struct TileWorkspace {
  TileWorkspace(const GemmTma& c, std::size_t tiles)
      : scratch(c.parts == 1 ? 0 : tiles * c.tile_scratch() / sizeof(float), NAN),
        semaphores(c.parts == 1 || c.later ? 0 : tiles) {}
  kiln::Workspace argument() { return {scratch.data(), semaphores.data()}; }
  /// Whether the semaphores are as a launch must leave them.
  bool ready_again() const {
    return std::all_of(semaphores.begin(), semaphores.end(), [](unsigned s) { return s == 0; });
  }

  std::vector<float> scratch;
  std::vector<unsigned> semaphores;
};

/// The instance of gemm_tma.cuh's kernel, or of its step.
inline std::string entry_of(const GemmTma& c, GemmTranspose op, bool batched,
                            const std::string& epilogue, const std::string& name = "gemm_tma",
                            const std::string& type = "__nv_bfloat16") {
  return "kiln::templates::" + name + "<" + text_of(c) + ", kiln::templates::GemmTranspose(" +
         std::to_string(static_cast<int>(op)) + "), " + type + ", " + (batched ? "true" : "false") +
         ", kiln::epilogue::" + epilogue + ">";
}

}  // namespace host_test
