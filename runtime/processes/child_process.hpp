// One process that this one has started, and the channel to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/types.h>

#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

/// Whether a process that this signal has ended was ended from outside, by the system where memory
/// ran out, for example: no fault of its own sends it this signal.
bool sent_by_others(int signal) noexcept;

/// A program that this process has started by exec, never a fork. Its descriptor 0 is the channel,
/// 1 is /dev/null, and 2 is a pipe to this process; it inherits no other descriptor, unless it is
/// given one as its descriptor 3. All its signals have their default actions. It has a process
/// group of its own, so that Ctrl-C goes to this process alone; what is left of the group when it
/// ends or is killed, such as its own children, is killed, unless the program has reaped the child.
/// Its only argument is the id of this process.
///
/// It is a child of this process: SIGCHLD is sent when it ends, and a waitpid(-1) of the program
/// may reap it, which does no harm. Not thread-safe. The destructor kills it.
///
/// What is killed may stay for a while: in a sleep that nothing interrupts, such as that for a file
/// of a server that is gone, or for a tracer. It is waited for for kKilledSeconds, and reaped when
/// another process is started or has ended, where the system has pidfds.
class ChildProcess {
 public:
  /// @param background it runs only while a core has nothing else to do (SCHED_IDLE), if the system
  /// permits that
  /// @throws EnvironmentError when it cannot be started.
  /// @param inherited a descriptor above 2 that becomes its descriptor 3; -1: none
  explicit ChildProcess(const std::filesystem::path& executable, int inherited = -1,
                        bool background = false);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// A stream socket for both directions, which does not block. -1 after `end`.
  int channel() const noexcept { return channel_; }
  /// The pipe from its descriptor 2, which does not block. -1 when nothing more can come.
  int errors() const noexcept { return errors_; }
  pid_t id() const noexcept { return id_; }

  /// Reads what it has written to descriptor 2 so far, and keeps the last 4 KiB.
  void read_errors();
  const std::string& last_words() const noexcept { return words_; }

  /// Whether it is stopped, by SIGSTOP for example.
  bool stopped() const;
  /// Bytes of memory that it occupies; 0: not known.
  std::uint64_t resident_bytes() const;

  enum class End {
    soon,  ///< closes the channel, and kills the process if it has not ended a second later
    now    ///< kills the process
  };
  /// Seconds that a process has to end by itself, and that a killed one is waited for.
  static constexpr double kSoonSeconds = 1, kKilledSeconds = 10;
  /// Waits until it has ended, and returns how: `ended with exit code 3`.
  std::string end(End how);
  /// Begins what `end` does, and returns at once.
  void begin_end(End how);
  /// Whether it is over. To be asked when `end_descriptor` is readable and after `next_look`.
  bool has_ended();
  int end_descriptor() const noexcept { return is_kept_ ? -1 : process_; }  ///< -1: there is none
  TimeLimit next_look() const;
  bool killed() const noexcept { return killed_; }
  /// How it has ended; empty before that.
  const std::string& how_ended() const noexcept { return how_ended_; }
  /// The signal that ended it; 0 before that, if no signal is known to have, and if `end` did.
  int ended_by() const noexcept { return signal_; }

 private:
  void kill();
  void kill_group() const;
  void close_all();

  pid_t id_ = 0;
  int process_ = -1;  ///< a descriptor for the process itself, where the kernel has such
  int channel_ = -1;
  int errors_ = -1;
  int signal_ = 0;
  bool killed_ = false;
  bool is_kept_ = false;  ///< it has ended, but cannot be reaped yet
  TimeLimit limit_{};     ///< for the step of `end` that it is in
  std::string words_, how_ended_;
};

}  // namespace kiln::runtime
