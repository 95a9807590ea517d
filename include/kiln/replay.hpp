// How good a search is: strategies run on measured spaces, many times, without hardware.
//
//   kiln::SearchReplay replay(kiln::RecordedSpace("gemm.t4.json.gz"));
//   kiln::ReplayResult r = replay.run({.strategy = "genetic", .budget = 100, .repeats = 100});
//   r.mean; r.at(25).mean;
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kiln/recorded.hpp"

namespace kiln {

struct ReplayOptions {
  std::string strategy{};     ///< empty: the default one
  std::size_t budget = 200;   ///< configs to evaluate, those that fail included
  std::size_t repeats = 100;  ///< searches, with seeds `seed`, `seed` + 1, ...
  std::uint64_t seed = 1;
  /// The strategy is told one raw repeat, drawn at random, instead of the mean of all. It is still
  /// judged by the mean time of the config that it would pick, which is the best by what it was
  /// told.
  bool noise = false;
  unsigned threads = 0;  ///< at most this many; 0: one per hardware thread
  /// The same kernel's spaces of other problems or devices, which the strategy may learn from
  /// before it begins; strategies but the default one ignore them. Parameters are matched by name.
  std::vector<RecordedSpace> prior{};
  /// What is told of each of `prior`: the results of a search of this many evaluations with `seed`,
  /// as a tuning record has them; 0: of all configs.
  std::size_t prior_evaluations = 0;
};

/// After this many evaluations, the optimum's time over that of a search's best config; 0 where the
/// search found nothing that works.
struct ReplayPoint {
  std::size_t evaluations = 0;
  double mean = 0, min = 0;
};

struct ReplayResult {
  std::string strategy;
  std::size_t evaluations = 0;  ///< the budget
  std::size_t repeats = 0;
  double optimum = 0;        ///< seconds
  double mean = 0, min = 0;  ///< fraction of the optimum at the end
  /// At each evaluation up to 200, then ever more sparsely, and at the last.
  std::vector<ReplayPoint> curve;
  double used = 0;  ///< mean evaluations; less than the budget if a strategy ends by itself
  double device_seconds = 0;  ///< mean compile and run time that a search would have cost
  double wall_seconds = 0;    ///< of all searches together

  /// The last point of the curve at or before that many evaluations.
  const ReplayPoint& at(std::size_t count) const;
};

/// Immutable; `run` may be called from several threads.
class SearchReplay {
 public:
  explicit SearchReplay(RecordedSpace space);
  ~SearchReplay();
  SearchReplay(SearchReplay&&) noexcept;
  SearchReplay& operator=(SearchReplay&&) noexcept;

  const RecordedSpace& space() const noexcept;

  /// Each search is one strategy with its own seed that asks for one config at a time and is told
  /// that config's time, nothing else. One that ends early keeps its best.
  /// @throws UserError on an unknown strategy, listing those that exist; a budget or repeats of 0;
  /// a prior space that lacks most of the parameters, or all values that work.
  ReplayResult run(const ReplayOptions& options = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The names of all strategies, and the one that is used where none is named.
std::vector<std::string> search_strategies();
std::string default_search_strategy();

}  // namespace kiln
