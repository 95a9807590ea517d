// One run of a region after the other: what it launches, with which configs, how long that takes.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/detail/tunable.hpp"
#include "kiln/region.hpp"
#include "runtime/measure/watched_bench.hpp"
#include "runtime/region/function.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/support/guarded_launches.hpp"

namespace kiln::runtime {

/// A kernel, or a function with knobs, and a bucketed problem that the region launches.
struct Site {
  std::vector<std::shared_ptr<detail::TunableHandle>>
      handles;  ///< the first one's definition counts
  Values problem;
  detail::Launchable base;   ///< what is in use: launched where no candidate is, or where it fails
  std::size_t launches = 0;  ///< in the first run

  detail::Tunable what() const { return handles.front()->what(); }
  std::string describe() const;
};

/// Not thread-safe. The region, the engine and the options must outlive it.
class RegionRunner final : public detail::RegionCore {
 public:
  /// `defaults`: base configs are the kernels' defaults, whatever is in use.
  RegionRunner(detail::Engine& engine, const std::function<void(Region&)>& region,
               const RegionOptions& options, bool defaults);

  /// The first run: finds the sites, and what `check` says of it. @throws what the region throws,
  /// and as GuardedLaunches::run.
  std::string discover(GuardedLaunches& launches);
  const std::vector<Site>& sites() const noexcept { return sites_; }

  /// What a site launches in one run; null: its base.
  struct Assignment {
    const detail::Launchable* kernel = nullptr;
    bool timed = false;
  };
  struct Outcome {
    std::vector<double> site_seconds;   ///< mean per launch of those timed; 0: not launched
    std::vector<std::string> failures;  ///< not empty: the candidate failed, its base was launched
    std::vector<bool> hung;             ///< the candidate took too long; that is its failure
    std::string wrong;                  ///< by `check`, or why the run was given up
    double seconds = 0;                 ///< of the whole run
    std::exception_ptr thrown;          ///< by the region, `before`, or its bases
  };
  Outcome run(std::span<const Assignment> assignments, GuardedLaunches& launches);

  std::size_t runs() const noexcept { return runs_; }
  const std::vector<std::string>& late() const noexcept { return late_; }

  void launch(const detail::RegionLaunch& launch) override;

 private:
  struct Watch {
    std::unique_ptr<Stopwatch> stopwatch;
    std::size_t site = 0;
    bool counts = false;
  };

  /// The site of a launch; nothing for one that the first run did not see.
  std::optional<std::size_t> site_of(const detail::RegionLaunch& launch);
  Values default_of(const detail::Tunable& what, std::span<const std::int64_t> problem) const;
  detail::Launchable base_of(const detail::RegionLaunch& launch) const;
  void launch_at(std::size_t site, const detail::RegionLaunch& launch);
  void start(const detail::Launchable& ready, const detail::RegionLaunch& launch);
  /// @param seconds until all streams are done
  void call(GuardedLaunches& launches, double& seconds);
  void wait_for_streams();
  void add_up(Outcome& outcome);
  std::string verdict() const;
  void give_up_if_lost(const std::string& why);
  std::string tried() const;
  template <class Work>
  double watched(const std::string& text, bool rejects, const Work& work);
  void launch_candidate(std::size_t site, const detail::RegionLaunch& launch);
  void tell(double seconds, bool returned);
  /// Clears what this run's launches have left in the workspaces that they share with the program's
  /// own launches, and says what it was. Empty: nothing.
  std::string clear_semaphores();

  detail::Engine& engine_;
  const std::function<void(Region&)>& region_;
  const RegionOptions& options_;
  const bool defaults_;
  bool discovering_ = false;

  std::vector<Site> sites_;
  using HandleAndProblem = std::pair<const detail::TunableHandle*, Values>;
  std::map<HandleAndProblem, std::optional<std::size_t>> places_;
  std::map<HandleAndProblem, detail::Launchable> late_bases_;
  std::vector<std::shared_ptr<detail::TunableHandle>> late_handles_;
  std::vector<std::string> late_;
  std::vector<Key> keys_;  ///< of the sites' records

  const std::shared_ptr<detail::FunctionHandles> functions_ =
      std::make_shared<detail::FunctionHandles>();

  // Of the run that is going on.
  std::span<const Assignment> assignments_;
  Outcome* outcome_ = nullptr;
  std::vector<Watch> watches_;  ///< made once, used in every run
  std::size_t watches_used_ = 0;
  std::vector<Stream> streams_;
  struct UsedWorkspace {
    std::string name;
    detail::Launchable kernel;  ///< any one of its handle
    Stream stream;
  };
  std::vector<UsedWorkspace> workspaces_;
  std::size_t runs_ = 0;

  // The launch that is watched. What it launches inside of itself is a part of it.
  const double limit_;                    ///< 0: nobody gives one
  std::vector<std::string> texts_;        ///< the run's candidates, by site
  const std::string* at_work_ = nullptr;  ///< null: nothing
  double allowed_ = 0, longest_ = 0;      ///< seconds
  bool rejects_ = false;                  ///< what is at work, where it takes longer than it may
  bool told_ = false;
  const WatchedBench::Tell tell_;
  CallWatch watch_;  ///< last: its thread uses what is above
};

}  // namespace kiln::runtime
