// Tuning behind a program that serves: in Mode::background a launch of a problem without a record
// gets the untuned config at once, and the problem is tuned on a thread of Kiln's own, which
// measures only while the program allows it.
//
//   auto window = runtime.window({.max_seconds = 2});  // the GPU has nothing urgent to do
//   wait_for_requests();
//   window.close();    // nothing is measured any more
//   runtime.commit();  // between two steps: launches get what was found
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kiln/key.hpp"
#include "kiln/version.hpp"

namespace kiln {

/// When launches get what the background has found.
enum class Publish {
  at_once,   ///< as soon as a search has ended; with ranks only by Runtime::commit
  at_commit  ///< when the program calls Runtime::commit
};

struct BackgroundOptions {
  Publish publish = Publish::at_once;
  /// The share of time, 0 to 1, in which the background may measure while no window is open: in
  /// slices of a quarter of a second, with pauses between them. A slice in which no candidate of a
  /// problem was finished makes that problem's next slice twice as long, and the pause after it as
  /// well.
  double duty = 0;
  /// Evaluations per problem, where TuneOptions::max_evaluations sets no limit. A search continues
  /// from window to window, and ends after this many.
  std::size_t max_evaluations = 64;
  /// Another device of the same kind, such as `cuda:1`, to measure on: at any time, without windows
  /// and without a duty, because nothing of it runs on the runtime's device until a winner is
  /// loaded there. Its memory is the driver's, not RuntimeOptions::allocator's. Empty: the
  /// runtime's own device.
  /// @throws by Runtime's constructor: UserError when it is the runtime's own or of another kind
  /// (times of unlike devices would be compared), and what an unknown RuntimeOptions::device throws
  std::string device{};
};

struct WindowOptions {
  double max_seconds = 0;  ///< the window closes by itself after that; 0: when the object ends
};

namespace detail {
struct OpenWindow;
}

/// While one is open, the background may measure on the runtime's device. With
/// BackgroundOptions::device it never does, and a window changes nothing. Move-only; may outlive
/// the runtime. Thread-safe.
class TuningWindow {
 public:
  TuningWindow(TuningWindow&&) noexcept;
  TuningWindow& operator=(TuningWindow&&) noexcept;
  /// As close().
  ~TuningWindow();
  /// Ends it. Where no other window is open, it also ends a slice of the duty, and waits until
  /// nothing of tuning runs on the device: for the candidates that are being measured at the time,
  /// for data that is being uploaded, and for data that is being made for a worker (Isolation) or
  /// by a reference on the device. It does not wait for compilations, nor for other data. When it
  /// has returned, nothing is measured until a window is opened or, with a duty, the pause after a
  /// slice is over; a duty of 1 has no pauses.
  void close() noexcept;

 private:
  friend class Runtime;
  explicit TuningWindow(std::shared_ptr<detail::OpenWindow> window);

  std::shared_ptr<detail::OpenWindow> window_;
};

struct CommitOptions {
  /// Whether the call waits until what it publishes is compiled and loaded in this process: what
  /// other ranks have found (for RankOptions::step_seconds; then it is loaded behind the launches),
  /// and what was found behind another handle of the kernel. If not, ranks load it all behind their
  /// launches, and the call reads sources and exchanges a few messages. A later commit publishes
  /// what all ranks have by then. Without ranks, other handles of the kernel follow when their own
  /// search has come to them. A commit waits if any rank's does, and on a rank whose background has
  /// no thread.
  bool wait = true;
};

/// What Runtime::commit has put in use.
struct CommitReport {
  struct Change {
    std::string kernel;
    std::vector<std::string> types;
    std::map<std::string, std::int64_t> problem, config;
    bool operator==(const Change&) const = default;
  };
  std::uint64_t generation = 0;  ///< of the runtime: how often anything was published
  std::vector<Change> changes;   ///< sorted; with ranks the same on all of them
  /// Problems whose choice could not be loaded, with ranks on one of them at least. They stay as
  /// they are, on all ranks, and are not proposed again.
  std::size_t dropped = 0;
  /// Problems for which the ranks have agreed on a config that one of them is still loading: see
  /// CommitOptions::wait. The same on all ranks, which are not settled meanwhile.
  std::size_t pending = 0;
  Digest digest{};  ///< of `generation` and `changes`: equal on all ranks
};

}  // namespace kiln
