// What a router has chosen, sorted by expert, as GEMMs of a mixture's experts read it
// (gemm_grouped.hpp, gemm_experts.hpp). Token t goes to the experts choices[t][e], 0 <= e < top.
//
//   ends[g]       the row behind expert g's last, as many as choices of experts 0 to g
//   tokens[i]     the token of row i; -1 from the last expert's end on
//   places[t][e]  the row of token t's choice e; -1 if that is dropped
//
// Rows follow each other expert by expert, and those of one expert in the order of (token, choice):
// the sort is stable. A choice below 0, or of `groups` or more, is dropped. A token may choose an
// expert more than once.
//
// choices, places: [count][top]; tokens: [count * top]; ends: [groups]. All are int, row-major
// without gaps, need no alignment beyond that, and may not overlap. Results are the same on each
// device and with each config. No choice leads outside of the arrays.
//
// One block does all in one launch (blocks = 1), or each block counts its chunk's choices of each
// expert into the workspace, and a second launch adds up those counts and sorts (blocks > 1).
//
//   auto sort = runtime.tuned(kiln::templates::sort_by_expert_kernel());
//   sort(stream, ends, tokens, places, choices, count, top, groups);
//   // A row's input is x[tokens[i]]; then gemm_grouped(stream, c, a, b, ends, count * top, ...).
//
// Negative sizes, more than kMostExperts groups and more than 2^31 - 1 choices are a UserError.
// Without tokens or choices all ends are 0; without groups all choices are dropped. Tunings draw
// experts that are chosen equally often, very differently often, and of which every second one is
// not chosen, with some choices dropped.
#pragma once

#include "kiln/config.hpp"
#if !defined(KILN_DEVICE_PASS)
#include "kiln/kernel.hpp"
#endif

namespace kiln::templates {

/// The most experts: blocks of up to two warps have counters for this many.
inline constexpr int kMostExperts = 4096;

struct SortByExpert {
  int block;   // threads per block: a power of two from 32 to 1024
  int items;   // choices that a thread reads at once
  int blocks;  // at most; 1: one launch, more: two

  constexpr int threads() const { return block; }
  constexpr int warps() const { return block / 32; }
  constexpr bool split() const { return blocks > 1; }
  /// A counter for each warp and expert.
  constexpr unsigned shared_bytes(int groups) const {
    return static_cast<unsigned>(warps()) * static_cast<unsigned>(groups) * 4;
  }
  /// Choices of a block: each warp has as many, a multiple of 32.
  constexpr unsigned chunk(unsigned choices) const {
    const auto of_blocks = static_cast<unsigned>(blocks), threads = static_cast<unsigned>(block);
    return ((choices + of_blocks - 1) / of_blocks + threads - 1) / threads * threads;
  }
  /// At least one block, because a block writes the ends.
  constexpr unsigned grid(unsigned choices) const {
    return choices == 0 ? 1 : (choices + chunk(choices) - 1) / chunk(choices);
  }
};

struct SortByExpertProblem {
  int count;   // tokens
  int top;     // choices of a token
  int groups;  // experts

  constexpr unsigned choices() const {
    return static_cast<unsigned>(count) * static_cast<unsigned>(top);
  }
};

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::SortByExpert, block, items, blocks)
KILN_PROBLEM(kiln::templates::SortByExpertProblem, count, top, groups)

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// Arguments: ends, tokens, places, choices, count, top, groups.
using SortByExpertKernel =
    Kernel<SortByExpert, SortByExpertProblem, void(int*, int*, int*, const int*, int, int, int)>;
SortByExpertKernel sort_by_expert_kernel();

}  // namespace kiln::templates
#endif
