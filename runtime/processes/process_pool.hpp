// Work done by a few processes, so that they run side by side and none of them can end this one.
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

#include <sys/types.h>

namespace kiln::runtime {

struct PoolOptions {
  std::filesystem::path executable{};  ///< its main function is `serve`
  std::vector<std::byte> setup{};      ///< what each process is told first
  /// Why a process that answers so is of no use; empty: it is. Called on the pool's thread.
  std::function<std::string(std::span<const std::byte> hello)> refuse{};
  unsigned processes = 1;  ///< at most, at once
  unsigned threads = 2;    ///< requests that one process works on at once
  /// Seconds that one request may take, once a process has it; then that process is killed.
  double limit = 300;
  double start_limit = 60;  ///< seconds that a process may take to say hello
  double idle = 20;         ///< seconds after which a process without work ends
  /// Bytes: a process that holds more when it answers is replaced.
  std::uint64_t resident_limit = std::uint64_t{2} << 30;
};

/// Safe to use from several threads. Processes start when they are needed. All are started by one
/// thread of the pool's own, since Linux ends them with the thread that started them, not with its
/// process. The destructor ends them; no `run` may be under way then.
class ProcessPool {
 public:
  explicit ProcessPool(PoolOptions options);
  ~ProcessPool();
  ProcessPool(const ProcessPool&) = delete;
  ProcessPool& operator=(const ProcessPool&) = delete;

  using Answer = std::vector<std::byte>;
  /// The process that worked on it ended, twice, or took too long.
  struct Lost {
    std::string reason;
  };
  /// No process can be started, or what was started is not what it should be.
  struct Unusable {
    std::string reason;
  };
  using Outcome = std::variant<Answer, Lost, Unusable>;

  /// Waits for a process's answer. When a process ends early, what it worked on is tried once more,
  /// each request alone in a process: so the one that is to blame is told from those beside it.
  Outcome run(std::vector<std::byte> request);

  /// The ids of those that are there.
  std::vector<pid_t> processes() const;

 private:
  struct Job;
  struct Process;

  void begin_to_keep();
  void wake() const;
  void keep();
  int milliseconds_to_next_event() const;
  void assign();
  bool assign(Job& job);
  Process* start(std::string& problem);
  void exchange(Process& process);
  void take_answers(Process& process);
  void lose(Process& process, const std::string& why, bool at_once);
  void expire();
  void give_up(const std::string& reason);
  void finish(Job& job, Outcome outcome);

  const PoolOptions options_;
  const pid_t owner_;
  mutable std::mutex mutex_;
  std::condition_variable finished_;
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
