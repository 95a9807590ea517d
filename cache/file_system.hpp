// The system calls of the store that can fail for lack of space or permission, behind one table, so
// that tests can make each of them fail or stop there.
#pragma once

#include <cstddef>
#include <string>

#include <sys/types.h>

namespace kiln::cache {

/// Why something could not be done, for people.
struct Failure {
  std::string what;    ///< path, call and code
  std::string advice;  ///< what to do about it
  int code = 0;        ///< errno; 0 when the refusal is Kiln's own
};

/// A failed system call on `path`, with the advice that fits its code.
Failure call_failure(const char* call, const std::string& path, int code);

/// Thin and stateless: each function is its system call, with errno on failure.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// mkdirat, mode 0700 whatever the umask.
  virtual int make_directory(int parent, const char* name);
  /// openat of a file that does not exist yet, for writing; mode 0600 whatever the umask.
  virtual int create(int directory, const char* name);
  virtual ssize_t read(int fd, void* data, std::size_t size);
  virtual ssize_t write(int fd, const void* data, std::size_t size);
  virtual int sync(int fd);
  virtual int rename(int directory, const char* from, const char* to);
  /// rename that fails with EEXIST where `to` is there already.
  virtual int rename_new(int directory, const char* from, const char* to);
  /// unlinkat of a file.
  virtual int remove(int directory, const char* name);
  /// Sets a file's time stamps to now, by the clock of whoever keeps the file.
  virtual int touch(int fd);
};

}  // namespace kiln::cache
