// Tuning behind the launches of a runtime: the problems whose launchables are provisional are
// compiled for and measured on one thread, and what was found is published.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kiln/background.hpp"
#include "kiln/log.hpp"
#include "runtime/background/background_job.hpp"
#include "runtime/background/commit_loader.hpp"
#include "runtime/background/joint_commit.hpp"
#include "runtime/background/measuring_times.hpp"
#include "runtime/background/pending_changes.hpp"
#include "runtime/background/proposal.hpp"
#include "runtime/serve/background.hpp"
#include "runtime/serve/served_handle.hpp"
#include "runtime/support/own_process.hpp"

namespace kiln::runtime {

/// A problem of which something provisional is in use.
struct Unsettled {
  std::weak_ptr<ServedHandle> handle;
  bool given_up = false;  ///< nothing is looked for here any more
};

/// What launches of a problem get. Awaited: a launch is yet to put something in use. Final: the
/// program or the ranks have chosen.
enum class InUse { awaited, provisional, final };
InUse in_use(ServedHandle& handle, const Values& problem);

class BackgroundTuning final : public Background {
 public:
  /// Measures on `device`; null: on the engine's.
  BackgroundTuning(detail::Engine& engine, std::shared_ptr<Device> device);
  /// Stops what is measured, and waits for the candidates and the data at hand, and for a config
  /// that is being compiled or loaded; in a fork of the process, which has no such thread, does
  /// nothing of that.
  ~BackgroundTuning() override;
  BackgroundTuning(const BackgroundTuning&) = delete;
  BackgroundTuning& operator=(const BackgroundTuning&) = delete;

  detail::Launchable provisional(detail::Launchable launchable,
                                 const std::shared_ptr<ServedHandle>& handle) override;
  void drop(const void* handle, const Values& problem) override;
  void forget(const void* handle) override;
  void withdraw(const void* handle, std::vector<Values>& problems) override;
  bool holds_back(const KernelDefinition& kernel,
                  std::span<const std::int64_t> problem) const override;

  const std::shared_ptr<MeasuringTimes>& times() const noexcept { return times_; }
  std::shared_ptr<detail::OpenWindow> open_window(double max_seconds) override;
  bool goes_on(const Recall& known) const override;
  bool settled() override;
  std::uint64_t generation() const noexcept override { return generation_; }
  CommitReport commit(const CommitOptions& options) override;

 private:
  using Job = BackgroundJob;
  TuneOptions search_options() const;
  /// What the thread shares with the object: it may be the thread that ends the engine.
  struct Jobs {
    std::mutex mutex;  ///< may be taken while Problems' is held, not the other way round
    std::deque<Job> waiting;
    std::vector<Proposal> found;
    std::map<std::pair<const void*, Values>, Unsettled> unsettled;  ///< by handle
    const void* at_hand = nullptr;      ///< the handle whose problem the thread is busy with
    std::atomic<std::size_t> count{0};  ///< waiting
    PendingChanges pending;             ///< loaded by the thread before anything is tuned
  };
  enum class Then { over, compile_more, measure_more, measure_later, wait };

  void work(const std::shared_ptr<Jobs>& jobs, const std::shared_ptr<MeasuringTimes>& times);
  /// `handle` keeps what was locked: the caller lets it go when nothing of this object is used any
  /// more.
  Then attend(Job& job, JobData& data, std::shared_ptr<ServedHandle>& handle);
  Then measure(Job& job, JobData& data, std::shared_ptr<ServedHandle>& handle);
  Then search(Job& job, const JobData& data, MeasuringTimes::Stretch& stretch,
              std::shared_ptr<ServedHandle>& handle);
  bool compile_ahead(Job& job);
  /// Returns whether there was something to load. This object may be gone then, and `times` ended.
  bool load_pending(Jobs& jobs, const MeasuringTimes& times, Definitions& definitions) noexcept;
  Then failed(Job& job, std::shared_ptr<ServedHandle>& handle, bool may_pass,
              const std::string& why) noexcept;
  void device_lost(const std::string& why) noexcept;
  bool has_thread(std::string& why_not);
  void settle(const std::vector<Proposal>& found, const std::vector<Unfound>& unfound,
              const std::vector<PendingChange>& pending, Definitions& definitions);
  void stop_looking(const void* handle, const Values& problem);
  void give_up(const void* handle, const Values& problem) noexcept;
  void settle_given_up() noexcept;
  void settle_given_up(const std::unique_lock<std::mutex>& committing) noexcept;
  void keep_in_use(const std::shared_ptr<ServedHandle>& handle, const Values& problem) noexcept;
  bool publish(const std::shared_ptr<ServedHandle>& handle, detail::Launchable launchable,
               const detail::Ready& seen);
  template <class Which>
  void take_found(std::vector<Proposal>& taken, const Which& which);
  bool unsettled(const void* handle, const Values& problem) const;
  void say(LogLevel level, const std::string& text) noexcept;
  void count_error() noexcept;

  detail::Engine& engine_;
  const OwnProcess process_;
  const std::shared_ptr<Device> other_device_;  ///< null: the engine's
  const std::shared_ptr<MeasuringTimes> times_;
  const std::shared_ptr<Jobs> jobs_;
  std::mutex committing_;
  std::atomic<std::uint64_t> generation_ = 0;  ///< changed under `committing_`
  std::atomic<bool> all_settled_ = false;      ///< with ranks: on all of them, at the last commit
  std::thread thread_;                         ///< started at the first request
  std::atomic<bool> told_of_no_thread_ = false;
};

}  // namespace kiln::runtime
