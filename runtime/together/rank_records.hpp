// The records that a rank writes of what ranks tune together.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/together/trials.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {

/// For one agreement, on one thread. What it is given must outlive it.
class RankRecords {
 public:
  RankRecords(Workshop& workshop, std::span<const TunableProblem> problems,
              const TuneOptions& options);

  /// Takes the key and the versions of problem `s`, before anything is measured: a source may be
  /// edited meanwhile. What is on record.
  std::optional<Recall> read(std::size_t s, bool for_launch);
  /// Whether this process, or one before it, has had trouble with it. After read().
  bool has_faulted(std::size_t s, const std::optional<Recall>& known) const;

  /// What all agreed on.
  /// @param anew it takes the place of an earlier winner
  void save(std::size_t s, const TuneResult& result, bool anew);
  /// What this rank alone has seen of a problem before it lost its device, so that later processes
  /// leave out what did it. Without a winner, here or on record, there is no record of it: this
  /// process alone remembers.
  void save_fault(std::size_t s, TuneResult seen);

 private:
  struct Kept {
    Key key;
    std::vector<Version> versions;
  };

  std::optional<Recall> latest(std::size_t s) const;
  void remember(std::size_t s, const TuneResult& result, bool faulted);

  Workshop& workshop_;
  std::span<const TunableProblem> problems_;
  const TuneOptions& options_;
  std::vector<Kept> kept_;
};

}  // namespace kiln::runtime
