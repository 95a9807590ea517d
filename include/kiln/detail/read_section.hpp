// Internal: how a launch keeps what it has found without a lock: nothing that it may read is freed
// before its section has ended (read-copy-update).
#pragma once

#include <atomic>
#include <cstdint>

namespace kiln::detail {

/// One thread's sections. Only that thread writes it; a thread that wants to free something reads
/// it.
struct alignas(64) Reader {
  std::atomic<std::uint64_t> sections{0};  ///< begun and ended; odd: the thread is in one
  unsigned depth = 0;                      ///< sections within sections count once
  std::atomic<bool> taken{true};           ///< by a thread that lives
  Reader* next = nullptr;                  ///< of all readers of the process
};

/// Begun by the library, ended by the destructor, on the same thread. Sections may be nested, and
/// then the outermost one counts.
class ReadSection {
 public:
  ReadSection() noexcept = default;
  ReadSection(const ReadSection&) = delete;
  ReadSection& operator=(const ReadSection&) = delete;
  ~ReadSection() { end(); }

  /// @pre it has not begun. `fenced`: the thread that frees does not order this for all threads.
  void begin(Reader& reader, bool fenced) noexcept {
    reader_ = &reader;
    if (reader.depth++ != 0) return;
    const std::uint64_t now = reader.sections.load(std::memory_order_relaxed) + 1;
    if (fenced)
      reader.sections.exchange(now, std::memory_order_seq_cst);
    else
      reader.sections.store(now, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  void end() noexcept {
    if (!reader_) return;
    Reader& reader = *reader_;
    reader_ = nullptr;
    if (--reader.depth != 0) return;
    reader.sections.store(reader.sections.load(std::memory_order_relaxed) + 1,
                          std::memory_order_release);
  }

 private:
  Reader* reader_ = nullptr;
};

}  // namespace kiln::detail
