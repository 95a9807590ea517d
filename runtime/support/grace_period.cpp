#include "runtime/support/grace_period.hpp"

#include <new>

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kiln::runtime {

using detail::Reader;

namespace {

/// All readers ever made: a thread that ends leaves its reader to another thread.
constinit std::atomic<Reader*> all_readers{nullptr};

bool membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0) == 0; }

/// Whether the thread that frees can make all others order their stores before their loads. If not,
/// each section begins with a fence.
bool has_barrier() noexcept {
  static const bool has = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return has;
}

/// In a child only the thread that has forked goes on: the sections of the others would never end.
void end_sections_of_other_threads() noexcept {
  for (Reader* reader = all_readers.load(std::memory_order_acquire); reader;
       reader = reader->next) {
    if (reader == thread_reader.reader) continue;
    const std::uint64_t section = reader->sections.load(std::memory_order_relaxed);
    reader->sections.store(section + section % 2, std::memory_order_release);
    reader->depth = 0;
    reader->taken.store(false, std::memory_order_release);
  }
}

Reader& free_reader() {
  static const int forks = pthread_atfork(nullptr, nullptr, end_sections_of_other_threads);
  (void)forks;
  for (Reader* reader = all_readers.load(std::memory_order_acquire); reader;
       reader = reader->next) {
    bool free = false;
    if (!reader->taken.load(std::memory_order_relaxed) &&
        reader->taken.compare_exchange_strong(free, true, std::memory_order_acquire))
      return *reader;
  }
  auto* const fresh = new Reader;
  fresh->next = all_readers.load(std::memory_order_relaxed);
  while (!all_readers.compare_exchange_weak(fresh->next, fresh, std::memory_order_seq_cst)) {
  }
  return *fresh;
}

/// Gives the reader back when its thread ends. A launch after that, by another object's destructor,
/// takes one that is not given back.
struct Release {
  ~Release() {
    if (Reader* const reader = std::exchange(thread_reader.reader, nullptr);
        reader && reader->depth == 0)
      reader->taken.store(false, std::memory_order_release);
  }
};

}  // namespace

constinit thread_local ThreadReader thread_reader;

void enter_thread() noexcept {
  thread_reader = {&free_reader(), !has_barrier()};
  static thread_local const Release release;
  (void)release;
}

GracePeriod GracePeriod::begin() noexcept try {
  GracePeriod grace;
  // A process that was forked may have lost its registration.
  grace.ordered_ = !has_barrier() || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
                   (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
                    membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED));
  for (const Reader* reader = all_readers.load(std::memory_order_seq_cst); reader;
       reader = reader->next)
    if (const std::uint64_t section = reader->sections.load(std::memory_order_seq_cst);
        section % 2 != 0)
      grace.within_.emplace_back(reader, section);
  return grace;
} catch (const std::bad_alloc&) {
  GracePeriod grace;
  grace.ordered_ = false;
  return grace;
}

bool GracePeriod::over() noexcept {
  if (!ordered_) *this = begin();
  if (!ordered_) return false;
  std::erase_if(within_, [](const auto& within) {
    return within.first->sections.load(std::memory_order_acquire) != within.second;
  });
  return within_.empty();
}

}  // namespace kiln::runtime
