// Threads that compile for one search after the other.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "runtime/support/own_process.hpp"

namespace kiln::runtime {

/// Thread-safe. Jobs begin in the order submitted. Threads end when there is nothing left to do. A
/// crew that is still there when the process exits ends before the libraries that it compiles with.
class BuildCrew {
 public:
  /// Must not throw. @param worker the thread's number, counted from 0
  using Job = std::function<void(unsigned worker)>;

  BuildCrew();
  BuildCrew(const BuildCrew&) = delete;
  BuildCrew& operator=(const BuildCrew&) = delete;
  /// Drops what has not begun, and waits for the rest; in a fork of the process it does not wait.
  ~BuildCrew();

  /// The job begins when fewer than `limit` jobs of the crew are running. In a fork of the process,
  /// which has none of the threads, it has ended when this returns.
  /// @throws EnvironmentError when the process is exiting
  void submit(unsigned limit, Job job);
  /// Waits for what was submitted before; not if a job calls it, nor in a fork of the process.
  void wait();

  /// Whether jobs may still be running when main() returns. Not before the compiler's library has
  /// compiled once: what it sets up in doing so is destroyed at exit before anything that was there
  /// earlier, so a crew that ends after that would end too late.
  static bool may_be_left() noexcept;
  /// A compilation of this process has ended with a binary: not all stages of one that fails run.
  static void note_compiled();

 private:
  struct Waiting {
    std::uint64_t number;  ///< in the order submitted
    unsigned limit;
    Job job;
  };
  struct Worker {
    std::thread thread{};
    bool ended = true;  ///< it does nothing more but return
  };
  friend class LiveCrews;
  void end() noexcept;
  void leave() noexcept;
  void start_worker();
  /// Starts one if a job may begin and no worker is about to take it.
  void start_worker_if_needed();
  bool is_own_thread() const;
  void work(unsigned number);

  const OwnProcess process_;
  std::mutex mutex_;
  std::deque<Waiting> waiting_;
  std::deque<Worker> workers_;  ///< by number
  unsigned working_ = 0;        ///< workers that have not ended
  unsigned starting_ = 0;       ///< of those, workers that have not looked for a job yet
  bool ended_ = false;          ///< takes no more jobs
  std::uint64_t submitted_ = 0;
  std::set<std::uint64_t> unfinished_;  ///< numbers of jobs
  std::unique_ptr<std::condition_variable> finished_ = std::make_unique<std::condition_variable>();
};

}  // namespace kiln::runtime
