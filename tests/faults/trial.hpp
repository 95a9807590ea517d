// How a fault is tried: in a forked process of its own, watched by a parent that counts.
//
//   void truncated(Trial& trial) {
//     trial.next("cut to 12 bytes");              // a case, and a new deadline
//     trial.right(output == reference, "..");     // else a wrong result
//     trial.kept(bystanders.whole(), "..");       // else a lost entry
//   }
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/types.h>

namespace kiln::faults {

using std::chrono::milliseconds;

/// An object that forked processes share with the one that made it. T must need no destructor.
template <class T>
class Shared {
 public:
  Shared() {
    void* place =
        ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) throw std::bad_alloc();
    value_ = new (place) T();
  }
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

/// What the trials of one fault came to.
struct Tally {
  std::atomic<std::uint64_t> cases{0}, wrong{0}, lost{0}, hangs{0};
  std::atomic<std::int64_t> deadline{0};  ///< of the case at hand, in ms of the steady clock
  std::atomic<std::int64_t> allowed{0};   ///< ms from its beginning to its deadline
  std::atomic<bool> skipped{false};
  char at[256] = {};     ///< the case at hand
  char notes[512] = {};  ///< why skipped, or what was left out
};

/// Thrown by Trial::skip.
struct Skipped {};

/// The trials of one fault. All functions may be called in any of the fault's processes and
/// threads, next() in one at a time.
class Trial {
 public:
  Trial(int number, Tally& tally, double seconds);

  /// Begins the next case. A process that is not done with it, children included, after `deadline`
  /// (times $KILN_TIMEOUT_FACTOR) is killed and counts as a hang.
  void next(const std::string& what, milliseconds deadline = milliseconds(10'000));

  /// Reports progress: the case's deadline begins anew. For long cases, so that a slow machine is
  /// not taken for a hang.
  void progress();

  bool right(bool holds, const std::string& what);
  bool kept(bool holds, const std::string& what);

  /// Ends the fault, which cannot be tried here.
  [[noreturn]] void skip(const std::string& why);
  /// Says which of its cases cannot be tried here, and why.
  void without(const std::string& what);

  /// How long the cases that hope to meet a race go on.
  double seconds() const { return seconds_; }

 private:
  void say(const char* what, const std::string& detail) const;

  int number_;
  Tally& tally_;
  double seconds_;
};

/// Forked processes of a case. Those still there at the end of its life are killed.
class Processes {
 public:
  explicit Processes(Trial& trial) : trial_(trial) {}
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// An exception in `body` is a wrong result. Its files' buffers are not flushed, its destructors
  /// of static objects not run.
  pid_t start(const std::function<void()>& body);
  /// Waits; whatever it ended by other than `signal` (0: by itself) is a wrong result.
  void wait(pid_t child, int signal = 0);
  void wait_all();
  /// Sends SIGSTOP and waits until it stands still.
  void stop(pid_t child);
  void kill(pid_t child);

  /// start() and wait().
  static void run(Trial& trial, const std::function<void()>& body, int signal = 0);

 private:
  Trial& trial_;
  std::vector<pid_t> running_;
};

/// Waits until another process makes it so; the case's deadline bounds it.
void await(const std::function<bool()>& holds);

/// The order's list. `try_it` runs in a process of its own.
struct Fault {
  int number;
  const char* name;
  void (*try_it)(Trial&);
};

/// Tries them in order, prints a line for each and the summary last. True when nothing was wrong,
/// lost or hung, and each was tried or said why not.
bool try_all(const std::vector<Fault>& faults, double seconds);

}  // namespace kiln::faults
