// Tuning behind the launches of a runtime: the problems that run untuned are compiled for and measured on
// one thread, and what was found is published.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kiln/background.hpp"
#include "runtime/serve/measuring_times.hpp"
#include "runtime/serve/served_handle.hpp"

namespace kiln::runtime {

/// What was found for a problem, loaded, but not in use yet.
struct Proposal {
  std::weak_ptr<ServedHandle> handle;
  const void* place = nullptr;  ///< of the handle, to compare
  detail::Launchable launchable;
};

/// Of one engine. Thread-safe.
class Background {
 public:
  explicit Background(detail::Engine& engine);
  /// Waits for the candidates that are being measured.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// A launchable that is in use while something better is looked for: graphs that capture its
  /// launches can be refreshed. Its problem is tuned from now on, if it is not already.
  detail::Launchable provisional(detail::Launchable untuned,
                                 const std::shared_ptr<ServedHandle>& handle);
  /// Something final is in use for the problem, or its handle is gone.
  void settle(const void* handle, const Values& problem);
  void forget(const void* handle);
  /// As Runtime::settled.
  bool settled() const;

  const std::shared_ptr<MeasuringTimes>& times() const noexcept { return times_; }
  /// As Runtime::commit.
  CommitReport commit();

 private:
  /// A problem that is being tuned.
  struct Job {
    std::weak_ptr<ServedHandle> handle;
    const void* place = nullptr;  ///< of the handle, to compare
    Values problem;
    std::deque<Values> to_compile;  ///< ahead of measuring
    bool listed = false;            ///< what is compiled ahead
    bool begun = false;             ///< something of it is on record
    int attempts = 0;               ///< that ended with an error
  };
  /// What the thread shares with the object: it may be the thread that ends the engine.
  struct Jobs {
    std::mutex mutex;
    std::deque<Job> waiting;
    std::vector<Proposal> found;
    std::set<std::pair<const void*, Values>> unsettled;
    std::atomic<std::size_t> count{0};  ///< waiting
  };

  void work(const std::shared_ptr<Jobs>& jobs, const std::shared_ptr<MeasuringTimes>& times);
  /// False: it is over, or can never succeed.
  bool measure(Job& job, const std::shared_ptr<ServedHandle>& handle, std::stop_token stop);
  bool compile_ahead(Job& job, const ServedHandle& handle);
  void give_up(const Job& job, const std::shared_ptr<ServedHandle>& handle, const std::string& why);
  void stay_untuned(const std::shared_ptr<ServedHandle>& handle, const Values& problem);
  void publish(const std::shared_ptr<ServedHandle>& handle, detail::Launchable launchable);
  bool unsettled(const void* handle, const Values& problem) const;

  detail::Engine& engine_;
  const std::shared_ptr<MeasuringTimes> times_;
  const std::shared_ptr<Jobs> jobs_;
  std::atomic<std::uint64_t> generation_{0};
  std::mutex committing_;
  std::thread thread_;  ///< started at the first request
};

}  // namespace kiln::runtime
