#include "runtime/prepare/preparation.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/runtime.hpp"
#include "runtime/prepare/before_agreement.hpp"

namespace kiln::runtime {

using detail::Engine;
using detail::format;

namespace {

void check_options(const PrepareOptions& options, const Engine& engine) {
  if (!(options.max_seconds >= 0) || !std::isfinite(options.max_seconds))
    throw UserError(format("prepare: max_seconds is {}, which is no limit", options.max_seconds));
  if (options.work == PrepareWork::look_up && engine.options().tuning.ranks && engine.may_compile())
    throw UserError(
        "prepare: ranks that agree may have to compile, so look_up needs a runtime in mode "
        "lookup_only or frozen");
}

}  // namespace

Serving::Preparing begin_preparing(const Manifest& manifest, const PrepareOptions& options,
                                   Engine& engine) {
  std::optional<Serving::Preparing> preparing;
  before_agreement(engine, manifest, patient(engine.options().tuning), [&] {
    check_options(options, engine);
    preparing.emplace(engine.serving().begin_preparing());
  });
  return *std::move(preparing);
}

}  // namespace kiln::runtime

namespace kiln {

PrepareReport Runtime::prepare(const Manifest& manifest, const PrepareOptions& options) const {
  const auto preparing = runtime::begin_preparing(manifest, options, *engine_);
  return runtime::prepare(*engine_, manifest, options, options.stop, options.progress, preparing);
}

struct Preparation::State {
  State(std::shared_ptr<detail::Engine> engine, Manifest manifest, PrepareOptions options,
        runtime::Serving::Preparing preparing)
      : engine_(std::move(engine)),
        manifest_(std::move(manifest)),
        options_(std::move(options)),
        preparing_(std::move(preparing)),
        forward_(options_.stop, [this] { stop_.request_stop(); }),
        thread_([this] { run(); }) {}

  void cancel() noexcept { stop_.request_stop(); }

  PrepareProgress progress() const {
    const std::lock_guard lock(mutex_);
    return progress_;
  }

  bool wait(double seconds) const {
    std::unique_lock lock(mutex_);
    const auto ended = [&] { return report_ || failure_; };
    if (!(seconds > 0))
      changed_.wait(lock, ended);
    else
      changed_.wait_for(lock, std::chrono::duration<double>(std::min(seconds, 1e9)), ended);
    return ended();
  }

  PrepareReport get() const {
    wait(0);
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    return *report_;
  }

 private:
  void run() noexcept {
    std::optional<PrepareReport> report;
    std::exception_ptr failure;
    try {
      const auto tell = [this](const PrepareProgress& now) {
        {
          const std::lock_guard lock(mutex_);
          progress_ = now;
        }
        if (options_.progress) options_.progress(now);
      };
      report =
          runtime::prepare(*engine_, manifest_, options_, stop_.get_token(), tell, *preparing_);
    } catch (...) {
      failure = std::current_exception();
    }
    preparing_.reset();  // before it is known to have ended: the next one may begin at once
    const std::lock_guard lock(mutex_);
    report_ = std::move(report);
    failure_ = failure;
    changed_.notify_all();
  }

  const std::shared_ptr<detail::Engine> engine_;
  const Manifest manifest_;
  const PrepareOptions options_;
  std::optional<runtime::Serving::Preparing> preparing_;
  std::stop_source stop_;
  mutable std::mutex mutex_;  ///< of the next four
  mutable std::condition_variable changed_;
  PrepareProgress progress_;
  std::optional<PrepareReport> report_;
  std::exception_ptr failure_;
  std::stop_callback<std::function<void()>> forward_;
  std::jthread thread_;  ///< last: it uses what is above, and ends before that
};

Preparation::Preparation(std::unique_ptr<State> state) : state_(std::move(state)) {}
Preparation::Preparation(Preparation&&) noexcept = default;
Preparation& Preparation::operator=(Preparation&& other) noexcept {
  if (this != &other) {
    cancel();
    state_ = std::move(other.state_);
  }
  return *this;
}
Preparation::~Preparation() { cancel(); }

PrepareProgress Preparation::progress() const { return state_->progress(); }
bool Preparation::wait(double seconds) const { return state_->wait(seconds); }
void Preparation::cancel() noexcept {
  if (state_) state_->cancel();
}
PrepareReport Preparation::get() const { return state_->get(); }

Preparation Runtime::prepare_async(Manifest manifest, PrepareOptions options) const {
  auto preparing = runtime::begin_preparing(manifest, options, *engine_);
  std::unique_ptr<Preparation::State> state;
  runtime::before_agreement(*engine_, manifest, runtime::patient(engine_->options().tuning), [&] {
    try {
      state = std::make_unique<Preparation::State>(engine_, manifest, std::move(options),
                                                   std::move(preparing));
    } catch (const std::system_error& error) {
      throw EnvironmentError(detail::format(
          "Runtime::prepare_async: no thread can be started: {}; call prepare, or when fewer "
          "threads run",
          error.what()));
    }
  });
  return Preparation(std::move(state));
}

}  // namespace kiln
