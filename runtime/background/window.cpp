#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/background/background_tuning.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln {

namespace detail {

/// Closed by the program or by its time, whichever comes first.
struct OpenWindow {
  OpenWindow(std::shared_ptr<runtime::MeasuringTimes> measuring, double seconds)
      : times(std::move(measuring)) {
    times->open_window();
    if (seconds > 0) try {
        set_alarm(runtime::TimeLimit(seconds, runtime::Clock::now()));
      } catch (const std::system_error& error) {
        close();  // no object will be there to do it
        throw EnvironmentError(
            detail::format("Runtime::window: no thread can be started that closes it after {} s: "
                           "{}; open it without a limit, or when fewer threads run",
                           seconds, error.what()));
      } catch (...) {
        close();
        throw;
      }
  }
  ~OpenWindow() {
    alarm.request_stop();
    close();
  }
  /// A second caller waits for the first.
  void close() noexcept {
    std::call_once(closed, [&] { times->close_window(); });
  }

  void set_alarm(runtime::TimeLimit deadline) {
    alarm = std::jthread([this, deadline](const std::stop_token& ended) {
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any never;
      if (deadline.at()) never.wait_until(lock, ended, *deadline.at(), [] { return false; });
      if (!ended.stop_requested()) close();
    });
  }

  const std::shared_ptr<runtime::MeasuringTimes> times;
  std::once_flag closed;
  std::jthread alarm;
};

}  // namespace detail

namespace runtime {

std::shared_ptr<detail::OpenWindow> BackgroundTuning::open_window(double max_seconds) {
  return std::make_shared<detail::OpenWindow>(times_, max_seconds);
}

}  // namespace runtime

namespace {

runtime::Background& background_of(detail::Engine& engine) {
  if (runtime::Background* const background = engine.background()) return *background;
  throw UserError("windows and commits are for a runtime in mode background");
}

}  // namespace

TuningWindow::TuningWindow(std::shared_ptr<detail::OpenWindow> window)
    : window_(std::move(window)) {}
TuningWindow::TuningWindow(TuningWindow&&) noexcept = default;
TuningWindow& TuningWindow::operator=(TuningWindow&&) noexcept = default;
TuningWindow::~TuningWindow() = default;

void TuningWindow::close() noexcept {
  if (window_) window_->close();
}

TuningWindow Runtime::window(const WindowOptions& options) const {
  if (!(options.max_seconds >= 0) || std::isinf(options.max_seconds))
    throw UserError(
        detail::format("Runtime::window: a limit of {} seconds; it must be finite and not negative",
                       options.max_seconds));
  return TuningWindow(background_of(*engine_).open_window(options.max_seconds));
}

CommitReport Runtime::commit(const CommitOptions& options) const {
  return background_of(*engine_).commit(options);
}

bool Runtime::settled() const {
  if (runtime::Background* const background = engine_->background()) {
    if (!background->settled()) return false;
    if (engine_->options().tuning.ranks) return true;  // a stand-in is this rank's alone
  }
  return std::ranges::none_of(engine_->serving().handles(),
                              [](const auto& handle) { return handle->problems().on_stand_in(); });
}

}  // namespace kiln
