// One process that this one has started, and the channel to it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <sys/types.h>

namespace kiln::runtime {

/// A program started by exec, never a copy of this process. It has the channel as descriptor 0,
/// nothing as 1, a pipe to this process as 2, and no other descriptor of this process; the default
/// for every signal; a process group of its own, so that Ctrl-C is this process's to handle. Its
/// first argument is this process's id.
///
/// The calling process sees it as a child: its waitpid(-1) may take it, which does no harm, and it
/// gets a SIGCHLD when it ends. Not thread-safe. The destructor ends it.
class ChildProcess {
 public:
  /// @throws EnvironmentError when it cannot be started.
  explicit ChildProcess(const std::filesystem::path& executable);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// A stream socket, both ways, which does not block. -1 once the process was ended.
  int channel() const noexcept { return channel_; }
  /// What it writes to its descriptor 2; does not block. -1 once there will be no more.
  int errors() const noexcept { return errors_; }
  pid_t id() const noexcept { return id_; }

  /// Takes what it has written to descriptor 2 so far, and keeps the last of it.
  void read_errors();
  const std::string& last_words() const noexcept { return words_; }

  enum class End {
    soon,  ///< it ends by itself, or at the latest a second after its channel was closed
    now    ///< it is killed
  };
  /// Waits for the end, and returns how it came: `ended with exit code 3`.
  std::string end(End how);

 private:
  bool ended_within(int milliseconds);
  void kill();

  pid_t id_ = 0;
  int process_ = -1;  ///< a descriptor for the process itself, where the kernel has such
  int channel_ = -1;
  int errors_ = -1;
  std::string words_;
};

}  // namespace kiln::runtime
