// Fault 19: a shared file system whose look-ups come late, name handles that are stale, or say for
// a while that nothing is there.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <string_view>
#include <thread>

#include <dlfcn.h>
#include <fcntl.h>

#include "program.hpp"

namespace {

/// What opening an entry meets. The test may replace it; by default there is nothing to meet.
std::atomic<int (*)()> look_up{nullptr};
std::atomic<int> looks{0};

}  // namespace

/// Replaces the C library's function, for Kiln as well, under the name that it has for large files.
extern "C" int openat(int directory, const char* path, int flags, ...) {
  using OpenAt = int (*)(int, const char*, int, ...);
  static const auto real = reinterpret_cast<OpenAt>(::dlsym(RTLD_NEXT, "openat64"));
  va_list more;
  va_start(more, flags);
  const bool creates = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  const mode_t mode = creates ? va_arg(more, mode_t) : 0;
  va_end(more);
  const auto met = look_up.load();
  if (met != nullptr && !creates && std::string_view(path).ends_with(".kiln")) {
    ++looks;
    if (const int code = met(); code != 0) return errno = code, -1;
  }
  return real(directory, path, flags, mode);
}

namespace kiln::faults {
namespace {

/// While it lives, opening an entry meets this.
class LookUps {
 public:
  explicit LookUps(int (*met)()) {
    looks = 0;
    look_up = met;
  }
  ~LookUps() { look_up = nullptr; }
  LookUps(const LookUps&) = delete;
  LookUps& operator=(const LookUps&) = delete;
};

struct Kind {
  const char* name;
  int (*met)();
  bool finds;  ///< what is there is found, if late
};

const Kind kKinds[] = {
    {"late",
     [] {
       std::this_thread::sleep_for(std::chrono::milliseconds(50));
       return 0;
     },
     true},
    {"nothing is there", [] { return ENOENT; }, false},
    {"nothing is there at first", [] { return looks <= 2 ? ENOENT : 0; }, false},
    {"stale", [] { return ESTALE; }, false},
    {"stale at first", [] { return looks <= 1 ? ESTALE : 0; }, false},
    {"busy", [] { return EBUSY; }, false},
    {"late, and failing",
     [] {
       std::this_thread::sleep_for(std::chrono::milliseconds(50));
       return EIO;
     },
     false},
};

}  // namespace

void look_ups(Trial& trial) {
  for (const Kind& kind : kKinds) {
    trial.next(kind.name);
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    const Bystanders bystanders(directory);
    Program(options_for(directory)).runs(trial, 1);
    {
      test::Log log;
      StoreOptions options = options_for(directory, 1 << 20);
      options.log = log.sink();
      const LookUps met(kind.met);
      Program program(options);
      program.runs(trial, 1);
      trial.right(looks > 0, "no entry was looked for");
      trial.right(!kind.finds || program.compiles() == 0, "what is in the store was compiled");
      trial.right(program.compiles() <= 1, "it was compiled twice");
      for (int i = 0; i < 5; ++i) program.runs(trial, 1);
      trial.right(program.compiles() <= 1, "what is known in the process was compiled");
      program.runs(trial, 2);
      trial.right(log.warnings().size() <= 1,
                  std::to_string(log.warnings().size()) + " warnings instead of one");
    }
    bystanders.whole(trial);
    Program after(options_for(directory));
    after.runs(trial, 1);
    trial.right(after.compiles() == 0, "what is in the store was lost");
  }
  trial.next("two programs that do not see each other's entries at first");
  const TemporaryDirectory root;
  const fs::path directory = root.path() / "cache";
  {
    const LookUps met([] { return looks <= 20 ? ENOENT : 0; });
    Program one(options_for(directory)), other(options_for(directory));
    for (int i = 0; i < 4; ++i) {
      one.runs(trial, i);
      other.runs(trial, i);
    }
  }
  Program after(options_for(directory));
  for (int i = 0; i < 4; ++i) after.runs(trial, i);
  trial.right(after.compiles() == 0, "what two have written is not there");
}

}  // namespace kiln::faults
