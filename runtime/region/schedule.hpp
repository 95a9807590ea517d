// Which config each site of a region runs with, run after run. A pure state machine: ranks that are
// told the same run the same.
//
//   sweep     in each run every site that is not done tries one (candidate, repeat), the others
//             run at their best
//   finals    site by site: the best few take turns, all other sites run at their best
//   rivals    all at their best, and all at their incumbents, in turns: the faster runs decide
//   closing   all at their best
//   suspects  at any time, after a run with wrong results: the candidates of that run, one by one
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kiln::runtime {

class RegionSchedule {
 public:
  struct Options {
    int warmup = 1, repeats = 3;
    std::size_t finalists = 3;
    float margin = 0.005F;  ///< the default stays unless beaten by more
  };
  /// A site's candidates: whether each may be tried. Candidate 0 is the default. Empty: nothing is
  /// to be chosen for this site.
  using Usable = std::vector<bool>;

  /// @param incumbents by site, the candidate that was chosen before, by whatever other means.
  /// Empty: there are none
  RegionSchedule(std::vector<Usable> sites, Options options,
                 std::vector<std::optional<std::size_t>> incumbents = {});

  /// A site's config in one run: a candidate, or nothing for what is in use.
  struct Place {
    std::optional<std::size_t> candidate;
    bool tried = false;  ///< it is to be timed
  };
  enum class Phase { sweep, finals, rivals, closing, suspects, done };
  Phase phase() const noexcept { return phase_; }
  /// The next run; empty when there is nothing left to do.
  std::vector<Place> next() const;

  /// What came of that run. `shared[s]`: seconds of a site, the same on all ranks; 0: no rank
  /// launched it; infinite: its candidate failed on some rank. `own`: as this rank saw it, which
  /// decides nothing. `wrong`: the results were wrong. `whole`: seconds of the whole run, the same
  /// on all ranks.
  void ran(std::span<const float> shared, std::span<const float> own, bool wrong, float whole);

  /// There are no more runs. What was chosen before stays where whole runs have not decided
  /// against it by then.
  void end();

  enum class Fate {
    open,  ///< not come to
    measured,
    refused,  ///< was not usable
    failed,
    wrong,           ///< disqualified
    wrong_together,  ///< with others, and none of them was wrong alone
    not_launched     ///< no run launched its site
  };
  Fate fate(std::size_t site, std::size_t candidate) const;
  /// Seconds of each candidate, infinite for what was not measured. A candidate that was not in
  /// the finals comes behind those that were, and all come behind an incumbent that was kept.
  std::vector<float> times(std::size_t site) const;
  /// This rank's timed runs of one candidate: those of the finals, if it was in them.
  std::vector<float> samples(std::size_t site, std::size_t candidate) const;
  std::optional<std::size_t> best(std::size_t site) const { return sites_[site].best; }
  /// If not empty: configs that gave right results before gave wrong ones together, or later. The
  /// tuning cannot go on from there.
  const std::string& hopeless() const noexcept { return hopeless_; }

  std::size_t done() const noexcept;  ///< candidates, over all sites
  std::size_t total() const noexcept;

 private:
  struct Samples {
    std::vector<float> shared, own;
  };
  struct Candidate {
    Fate fate = Fate::open;
    bool right = false;  ///< was in a run whose results were
    Samples sweep, finals;
  };
  struct Site {
    std::vector<Candidate> candidates;
    std::size_t turn = 0;  ///< the candidate being tried; past the last: done
    int runs = 0;          ///< of this turn
    int missed = 0;        ///< runs in a row without the site
    std::optional<std::size_t> best, incumbent;
    std::vector<std::size_t> finalists;
    bool kept = false;  ///< the incumbent is, whatever the site's own times say
  };
  struct Suspect {
    std::size_t site, candidate;
  };

  /// times() without regard to incumbents.
  std::vector<float> own_times(const Site& site) const;
  bool sweeping(const Site& site) const { return site.turn < site.candidates.size(); }
  void advance(Site& site);
  void choose_best(std::size_t s);
  void after_sweep(std::span<const float> shared, std::span<const float> own, bool wrong);
  void after_final(std::span<const float> shared, std::span<const float> own, bool wrong);
  void after_suspect(std::span<const float> shared, bool wrong);
  void record(Site& site, float shared, float own);
  void open_finals(std::size_t s);
  void next_finalist();
  bool has_rival(const Site& site) const;
  int all_rival_runs() const { return 2 * (options_.warmup + options_.repeats); }
  void keep_incumbents();
  void after_rival(std::span<const float> shared, bool wrong, float whole);
  bool incumbents_turn() const { return rival_runs_ % 2 == 1; }
  void go_on();

  const Options options_;
  std::vector<Site> sites_;
  Phase phase_ = Phase::sweep;
  std::size_t final_ = 0;  ///< the site in the finals
  std::size_t place_ = 0;  ///< whose turn it is there
  int round_ = 0;
  int rival_runs_ = 0;
  std::vector<float> at_best_, at_incumbents_;  ///< seconds of whole runs
  int closing_ = 0;
  std::vector<Suspect> suspects_;  ///< the last is next
  std::vector<Suspect> accused_;   ///< all of that run
  bool someone_guilty_ = false;
  std::string hopeless_;
};

}  // namespace kiln::runtime
