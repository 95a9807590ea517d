#include "runtime/background/measuring_times.hpp"

#include <algorithm>
#include <chrono>

namespace kiln::runtime {

namespace {

constexpr std::chrono::milliseconds kSlice{250};
/// Limits the length of slices, which are doubled again and again, and of the pauses.
constexpr double kLongestSeconds = 1e6;
/// Time between two checks whether another thread's tuning is over.
constexpr std::chrono::milliseconds kDoze{50};
constexpr std::chrono::hours kLongestDoze{1};  ///< no clock overflows

Clock::duration in_seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::min(seconds, kLongestSeconds)));
}

double seconds_of(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

MeasuringTimes::Stretch::Stretch(MeasuringTimes& times, bool by_duty, double slices)
    : times_(times), begin_(times.now_()), by_duty_(by_duty) {
  if (by_duty_)
    alarm_ = std::jthread(
        [this, length = in_seconds(seconds_of(kSlice) * slices)](const std::stop_token& over) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any never;
          never.wait_for(lock, over, length, [] { return false; });
          stop_.request_stop();
        });
}

MeasuringTimes::Stretch::~Stretch() {
  alarm_ = {};
  const std::lock_guard lock(times_.mutex_);
  times_.stretch_ = nullptr;
  if (by_duty_) times_.pause_after(times_.now_() - begin_);
  times_.note_change();
}

void MeasuringTimes::Stretch::left_device() noexcept {
  const std::lock_guard lock(times_.mutex_);
  on_device_ = false;
  times_.note_change();
}

void MeasuringTimes::open_window() {
  const std::lock_guard lock(mutex_);
  ++windows_;
  note_change();
}

void MeasuringTimes::close_window() noexcept {
  std::unique_lock lock(mutex_);
  if (--windows_ > 0) return;
  pause_after(kSlice);
  if (!stretch_ || at_all_times_ || process_.is_forked()) return;
  stretch_->stop_.request_stop();
  const unsigned long measuring = stretches_;
  changed_.wait(lock,
                [&] { return !stretch_ || stretches_ != measuring || !stretch_->on_device_; });
}

void MeasuringTimes::interrupt() noexcept {
  const std::lock_guard lock(mutex_);
  if (stretch_) stretch_->stop_.request_stop();
}

void MeasuringTimes::end() noexcept {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  if (stretch_) stretch_->stop_.request_stop();
  note_change();
}

bool MeasuringTimes::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

bool MeasuringTimes::may_begin() const {
  if (ended_ || stretch_) return false;
  return at_all_times_ || windows_ > 0 || (duty_ > 0 && now_() >= next_slice_);
}

void MeasuringTimes::pause_after(Clock::duration measured) {
  if (duty_ <= 0) return;
  next_slice_ = std::max(next_slice_, now_() + in_seconds(seconds_of(measured) * (1 / duty_ - 1)));
}

bool MeasuringTimes::may_measure() const {
  const std::lock_guard lock(mutex_);
  return may_begin();
}

std::unique_ptr<MeasuringTimes::Stretch> MeasuringTimes::begin(double slices) {
  const std::lock_guard lock(mutex_);
  if (!may_begin()) return nullptr;
  std::unique_ptr<Stretch> stretch(new Stretch(*this, windows_ == 0 && !at_all_times_, slices));
  stretch_ = stretch.get();
  ++stretches_;
  return stretch;
}

void MeasuringTimes::wait(const std::function<bool()>& ready) {
  std::unique_lock lock(mutex_);
  while (!ended_ && !ready()) changed_.wait(lock);
}

unsigned long MeasuringTimes::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

void MeasuringTimes::doze(unsigned long seen, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  const Clock::time_point now = now_();
  Clock::duration length = std::min<Clock::duration>(until - now, kLongestDoze);
  if (may_begin())
    length = std::min<Clock::duration>(length, kDoze);
  else if (duty_ > 0)
    length = std::min(length, next_slice_ - now);
  changed_.wait_for(lock, length, [&] { return ended_ || changes_ != seen; });
}

void MeasuringTimes::note_change() {
  ++changes_;
  changed_.notify_all();
}

void MeasuringTimes::notify() {
  const std::lock_guard lock(mutex_);
  note_change();
}

}  // namespace kiln::runtime
