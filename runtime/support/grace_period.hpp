// When what readers may have found without a lock can be freed.
//
//   detail::ReadSection section;       // a reader
//   begin(section);
//   use(*table.load(std::memory_order_seq_cst));
//
//   table.store(fresh, std::memory_order_seq_cst);  // a writer
//   const GracePeriod grace = GracePeriod::begin();
//   if (grace.over()) delete old;                   // else later
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kiln/detail/read_section.hpp"

namespace kiln::runtime {

/// The calling thread's reader; null before its first section.
struct ThreadReader {
  detail::Reader* reader = nullptr;
  bool fenced = false;
};
// In the static part of a thread's storage: a launch calls no function for it.
extern constinit thread_local ThreadReader thread_reader __attribute__((tls_model("initial-exec")));
void enter_thread() noexcept;

/// Of the calling thread. Lock-free; the first call of a thread may allocate.
inline void begin(detail::ReadSection& section) noexcept {
  if (!thread_reader.reader) [[unlikely]]
    enter_thread();
  section.begin(*thread_reader.reader, thread_reader.fenced);
}

/// Over when all sections have ended that threads were in when it began. Those that begin later
/// find what was stored before it. Waits for nobody.
class GracePeriod {
 public:
  /// Costs an interrupt of each core that runs a thread of the process, where the system has
  /// membarrier(2); where it has not, a section costs a fence instead. Where there is no memory, it
  /// begins when it is asked whether it is over.
  static GracePeriod begin() noexcept;

  bool over() noexcept;

 private:
  bool ordered_ = true;  ///< false: it has not begun, so nothing is known
  /// Threads in a section, and which section of theirs that was.
  std::vector<std::pair<const detail::Reader*, std::uint64_t>> within_;
};

}  // namespace kiln::runtime
