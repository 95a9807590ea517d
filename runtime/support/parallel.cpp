#include "runtime/support/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/support/machine.hpp"

namespace kiln::runtime {

void for_each_index(unsigned threads, std::size_t count, std::stop_token stop,
                    const std::function<void(std::size_t)>& work,
                    const std::function<void(std::size_t)>& progress) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t done = 0, running = 0;
  std::exception_ptr failure;

  const auto crew_member = [&] {
    for (std::size_t i; !stop.stop_requested() && (i = next.fetch_add(1)) < count;) {
      std::exception_ptr thrown;
      try {
        work(i);
      } catch (...) {
        thrown = std::current_exception();
        next = count;
      }
      if (!thrown && !progress) continue;  // the calling thread is woken at the end alone
      const std::lock_guard lock(mutex);
      if (thrown && !failure) failure = thrown;
      ++done;
      changed.notify_one();
    }
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_one();
  };

  std::vector<std::jthread> crew;
  {
    std::unique_lock lock(mutex);
    for (std::size_t i = 0; i < std::min<std::size_t>(std::max(1u, threads), count); ++i) {
      try {
        crew.emplace_back(crew_member);
        ++running;
      } catch (const std::system_error&) {  // no more threads: those that there are do all of it
        break;
      }
    }
    if (crew.empty() && count > 0) {
      ++running;
      lock.unlock();
      crew_member();
      lock.lock();
    }
    for (std::size_t seen = 0; running != 0 || done != seen;) {
      changed.wait(lock, [&] { return running == 0 || done != seen; });
      if (done == seen) continue;
      seen = done;
      if (!progress) continue;
      lock.unlock();
      try {
        progress(seen);
      } catch (...) {
        next = count;  // the caller does not want the rest
        throw;
      }
      lock.lock();
    }
  }
  crew.clear();
  if (failure) std::rethrow_exception(failure);
}

void for_each_block(std::size_t count,
                    const std::function<void(std::size_t begin, std::size_t end)>& work) {
  constexpr std::size_t kBlock = std::size_t{1} << 18;
  const std::size_t blocks = (count + kBlock - 1) / kBlock;
  const auto block = [&](std::size_t i) { work(i * kBlock, std::min(count, (i + 1) * kBlock)); };
  if (blocks > 1)
    for_each_index(usable_cores(), blocks, {}, block, {});
  else if (blocks == 1)
    block(0);
}

}  // namespace kiln::runtime
