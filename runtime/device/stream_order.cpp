#include "runtime/device/stream_order.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace kiln::runtime {

namespace {

/// The numbers of running threads: the smallest that are free, so that there are no more of them
/// than threads have run at the same time.
class ThreadNumbers {
 public:
  std::uint64_t take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      free_.reserve(last_ + 1);  // so that give_back() allocates nothing
      return ++last_;
    }
    std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    const std::uint64_t number = free_.back();
    free_.pop_back();
    return number;
  }
  void give_back(std::uint64_t number) noexcept {
    const std::lock_guard lock(mutex_);
    free_.push_back(number);
    std::push_heap(free_.begin(), free_.end(), std::greater<>());
  }

 private:
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::vector<std::uint64_t> free_;  ///< a heap
};

/// The number of one thread, which shares the numbers: a thread may end after the program's
/// statics.
class ThreadNumber {
 public:
  explicit ThreadNumber(std::shared_ptr<ThreadNumbers> all)
      : all_(std::move(all)), number_(all_->take()) {}
  ~ThreadNumber() { all_->give_back(number_); }
  ThreadNumber(const ThreadNumber&) = delete;
  ThreadNumber& operator=(const ThreadNumber&) = delete;

  std::uint64_t get() const noexcept { return number_; }

 private:
  const std::shared_ptr<ThreadNumbers> all_;
  const std::uint64_t number_;
};

}  // namespace

std::uint64_t StreamOrder::this_thread() noexcept {
  static std::atomic<std::uint64_t> last{0};
  static thread_local const std::uint64_t here = ++last;
  return here;
}

std::uint64_t StreamOrder::this_running_thread() {
  static const auto all = std::make_shared<ThreadNumbers>();
  static thread_local const ThreadNumber here(all);
  return here.get();
}

}  // namespace kiln::runtime
