// A few processes that answer requests: they run side by side, and none of them can end this one.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "runtime/support/own_process.hpp"

namespace kiln::runtime {

struct PoolOptions {
  std::filesystem::path executable{};  ///< a program that calls `serve`
  std::vector<std::byte> setup{};      ///< the first message to each process
  /// Looks at a process's reply to `setup`. Returns why that process cannot be used, or nothing.
  /// Called on the pool's thread.
  std::function<std::string(std::span<const std::byte> hello)> refuse{};
  unsigned processes = 1;  ///< at most, at once
  unsigned threads = 2;    ///< requests that one process handles at once
  /// Seconds that a process may take for one request. Then the process is killed.
  double limit = 300;
  double start_limit = 60;  ///< seconds that a process may take to reply to `setup`
  double idle = 20;         ///< seconds after which a process without work ends
  /// A process that has more bytes of memory than this after an answer is replaced.
  std::uint64_t resident_limit = std::uint64_t{2} << 30;
  bool background = false;  ///< as ChildProcess
};

/// Safe to use from several threads. Processes start when they are needed. A thread of the pool
/// starts all of them: Linux kills them when the thread that started them ends, not when the
/// process does. The destructor ends the processes. It must not be called while a `run` is in
/// progress.
class ProcessPool {
 public:
  explicit ProcessPool(PoolOptions options);
  ~ProcessPool();
  ProcessPool(const ProcessPool&) = delete;
  ProcessPool& operator=(const ProcessPool&) = delete;

  using Answer = std::vector<std::byte>;
  /// The process ended by itself in both attempts, or took too long.
  struct Lost {
    std::string reason;
  };
  /// Each process was ended from outside, or never began: nothing is known of the request.
  struct Interrupted {
    std::string reason;
  };
  /// No process can be started, or the one that was started is not the right program.
  struct Unusable {
    std::string reason;
  };
  using Outcome = std::variant<Answer, Lost, Interrupted, Unusable>;

  /// Waits for the answer. When a process ends early, each of its requests is sent to a process
  /// once more, this time alone: only the request that ends this process, too, is lost. Where the
  /// process was ended from outside, the request is sent up to kAttempts times in all.
  Outcome run(std::vector<std::byte> request);
  static constexpr int kAttempts = 3;

  /// The ids of the processes that exist now; in a fork of the program none.
  std::vector<pid_t> processes() const;

 private:
  struct Job;
  struct Process;

  void begin_to_keep();
  void wake() const;
  void keep();
  void exchange_once(std::unique_lock<std::mutex>& lock, std::vector<pollfd>& watched);
  void drop_all() noexcept;
  int milliseconds_to_next_event() const;
  void assign();
  bool assign(Job& job);
  Process* start(std::string& problem);
  void exchange(Process& process);
  void take_answers(Process& process);
  void lose(Process& process, const std::string& why, bool at_once);
  void let_go();
  void lose_jobs(Process& process, const std::string& how, bool blameless);
  void lose(Job& job, bool blameless, const std::string& reason);
  void expire();
  void give_up(const std::string& reason);
  void finish(Job& job, Outcome outcome);

  const PoolOptions options_;
  const OwnProcess process_;
  mutable std::mutex mutex_;
  std::unique_ptr<std::condition_variable> finished_ = std::make_unique<std::condition_variable>();
  std::deque<Job*> waiting_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::string unusable_;        ///< why; empty: it is not known to be
  bool has_been_used_ = false;  ///< a process has said hello
  bool stopping_ = false;
  std::uint64_t next_id_ = 1;
  int wake_ = -1;
  std::thread keeper_;
};

}  // namespace kiln::runtime
