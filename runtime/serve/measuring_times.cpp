#include "runtime/serve/measuring_times.hpp"

#include <chrono>

namespace kiln::runtime {

namespace {

constexpr std::chrono::milliseconds kSlice{250};
/// Until it is asked again whether something may begin.
constexpr std::chrono::milliseconds kDoze{50};

}  // namespace

MeasuringTimes::Stretch::Stretch(MeasuringTimes& times, bool by_duty)
    : times_(times), by_duty_(by_duty) {
  if (by_duty_)
    alarm_ = std::jthread([this](const std::stop_token& over) {
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any never;
      never.wait_for(lock, over, kSlice, [] { return false; });
      stop_.request_stop();
    });
}

MeasuringTimes::Stretch::~Stretch() {
  alarm_ = {};
  const std::lock_guard lock(times_.mutex_);
  times_.stretch_ = nullptr;
  const auto now = Clock::now();
  if (by_duty_)
    times_.next_slice_ =
        now + std::chrono::duration_cast<Clock::duration>((now - begin_) * (1 / times_.duty_ - 1));
  times_.changed_.notify_all();
}

void MeasuringTimes::open_window() {
  const std::lock_guard lock(mutex_);
  ++windows_;
  changed_.notify_all();
}

void MeasuringTimes::close_window() noexcept {
  std::unique_lock lock(mutex_);
  if (--windows_ > 0) return;
  if (!stretch_ || stretch_->by_duty_) return;
  stretch_->stop_.request_stop();
  const unsigned long measuring = stretches_;
  changed_.wait(lock, [&] { return !stretch_ || stretches_ != measuring; });
}

void MeasuringTimes::interrupt() noexcept {
  const std::lock_guard lock(mutex_);
  if (stretch_) stretch_->stop_.request_stop();
}

void MeasuringTimes::end() noexcept {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  if (stretch_) stretch_->stop_.request_stop();
  changed_.notify_all();
}

bool MeasuringTimes::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

bool MeasuringTimes::may_begin() const {
  if (ended_ || stretch_) return false;
  return windows_ > 0 || (duty_ > 0 && Clock::now() >= next_slice_);
}

std::unique_ptr<MeasuringTimes::Stretch> MeasuringTimes::begin() {
  const std::lock_guard lock(mutex_);
  if (!may_begin()) return nullptr;
  std::unique_ptr<Stretch> stretch(new Stretch(*this, windows_ == 0));
  stretch_ = stretch.get();
  ++stretches_;
  return stretch;
}

void MeasuringTimes::wait(const std::function<bool()>& ready) {
  std::unique_lock lock(mutex_);
  while (!ended_ && !ready()) changed_.wait(lock);
}

void MeasuringTimes::doze() {
  std::unique_lock lock(mutex_);
  if (!ended_) changed_.wait_for(lock, kDoze);
}

void MeasuringTimes::notify() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace kiln::runtime
