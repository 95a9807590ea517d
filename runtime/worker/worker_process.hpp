// The program's side: one worker, asked one thing at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/processes/child_process.hpp"
#include "runtime/processes/frame.hpp"
#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

/// How a worker came to its end. Its words say it for people.
class WorkerEnd : public std::runtime_error {
 public:
  enum class How {
    fault,      ///< a signal of a fault, an exit, an answer that makes no sense
    killed,     ///< by a signal that others send
    late,       ///< it did not answer in time
    stopped,    ///< likewise, because somebody had stopped it
    too_large,  ///< it took more memory than it may
    device      ///< its device works no more
  };

  WorkerEnd(How how, const std::string& words) : std::runtime_error(words), how_(how) {}
  How how() const noexcept { return how_; }

 private:
  How how_;
};

/// Not thread-safe. The process ends with the thread that has started it, and with this object.
class WorkerProcess {
 public:
  /// Sends the setup, and waits for the reply. @throws EnvironmentError when there is no such
  /// program, WorkerEnd
  WorkerProcess(const std::filesystem::path& executable, std::span<const std::byte> setup, int data,
                const TimeLimit& limit);

  const std::vector<std::byte>& greeting() const noexcept { return greeting_; }
  pid_t id() const noexcept { return child_.id(); }
  /// Bytes of memory that it may have besides what it had at its greeting; it is watched while it
  /// works.
  void allow(std::uint64_t bytes) { most_ = at_first_ + bytes; }

  /// What is done about an answer that does not come in time.
  struct Late {
    std::function<void()> tell;  ///< called once
    double seconds = 0;          ///< that it has after that
  };
  /// Waits for the answer. @throws WorkerEnd: the process is gone, and the object of no further use
  std::vector<std::byte> ask(std::span<const std::byte> request, const TimeLimit& limit,
                             const Late* late = nullptr);

 private:
  Frame exchange(FrameKind kind, std::span<const std::byte> payload, TimeLimit limit,
                 const Late* late);
  std::optional<Frame> read();
  [[noreturn]] void lose(ChildProcess::End how, const std::string& why = {},
                         WorkerEnd::How as = WorkerEnd::How::fault);

  ChildProcess child_;
  FrameReader reader_;
  std::vector<std::byte> greeting_;
  std::uint64_t asked_ = 0;
  std::uint64_t at_first_ = 0;
  std::uint64_t most_ = 0;  ///< bytes of memory; 0: not watched
};

}  // namespace kiln::runtime
