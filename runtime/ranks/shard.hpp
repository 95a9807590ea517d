// Which rank tries what, so that ranks finish together. Pure functions: the same on every rank.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kiln::runtime::ranks {

/// What one candidate costs a rank, in seconds.
struct Cost {
  float compile = 0;  ///< of one compiler on one core
  float run = 0;      ///< verifying and timing
};

/// The number of candidates per rank, problem and compile thread from which on it pays to learn
/// their cost, by measuring the default.
inline constexpr std::size_t kShareToEstimate = 16;

struct ShardOptions {
  int ranks = 1;
  int compile_threads = 1;  ///< of each rank
  /// Compiling goes on while something is timed (a GPU); else they take turns (the host).
  bool overlap = false;
};

/// When a rank with this much work is done.
double finish(double compile, double run, const ShardOptions& options) noexcept;

/// The rank of each item: the most expensive first, each to the rank that is then done first
/// (ties: with the fewest, then the lowest). Within 4/3 of the best split where costs add up. O(n
/// log n + n log ranks).
/// @pre ranks >= 1, compile_threads >= 1, costs finite and >= 0
std::vector<int> assign(std::span<const Cost> costs, const ShardOptions& options);

/// The same for several problems: `candidates` of each, whose costs follow each other. A problem is
/// one rank's as a whole, which then needs no other rank to compare its candidates, and makes its
/// data alone; unless that rank would be done later than the others by more than an eighth. Such
/// problems' candidates are shared out, each by itself. Where no cost is known all count alike.
std::vector<std::vector<int>> assign(std::span<const std::size_t> candidates,
                                     std::span<const Cost> costs, const ShardOptions& options);

/// The order in which a rank builds what all ranks build: the first item, which is the default,
/// then, of each `ranks * compile_threads` items, its own before those of others. So ranks with one
/// store compile different ones, and find the others' there.
/// @param rank its place among the ranks of its store, of which there are options.ranks
/// @pre 0 <= rank < ranks, compile_threads >= 1
std::vector<std::size_t> build_order(std::size_t items, int rank, const ShardOptions& options);

}  // namespace kiln::runtime::ranks
