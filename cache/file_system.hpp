// The system calls of the store that can fail for lack of space or permission, behind one table, so
// that tests can make each of them fail or stop there.
#pragma once

#include <cstddef>
#include <string>

#include <sys/types.h>

#include "kiln/store.hpp"

namespace kiln::cache {

/// Why something could not be done, for people.
struct Failure {
  std::string what;    ///< path, call and code
  std::string advice;  ///< what to do about it
  int code = 0;        ///< errno; 0 when the refusal is Kiln's own
};

/// Whether this process is in the group.
bool is_own_group(gid_t group);

/// A failed system call on `path`, with the advice that fits its code.
Failure call_failure(const char* call, const std::string& path, int code);

/// Thin: each function is its system call, with errno on failure.
class FileSystem {
 public:
  explicit FileSystem(StoreSharing sharing = StoreSharing::user) : sharing_(sharing) {}
  virtual ~FileSystem() = default;

  /// mkdirat, whatever the umask with mode 0700; shared with a group, with 2770 and the parent's
  /// group.
  virtual int make_directory(int parent, const char* name);
  /// mkdir of a folder above the store, by its absolute path. If the store is a group's, the folder
  /// is no secret and not the group's: mode 0755, less the umask.
  virtual int make_parent(const char* path);
  /// openat of a file that does not exist yet, for writing, whatever the umask with mode 0600;
  /// shared with a group, with 0660 and the directory's group.
  virtual int create(int directory, const char* name);
  virtual ssize_t read(int fd, void* data, std::size_t size);
  virtual ssize_t write(int fd, const void* data, std::size_t size);
  virtual int sync(int fd);
  virtual int rename(int directory, const char* from, const char* to);
  /// rename that fails with EEXIST where `to` is there already.
  virtual int rename_new(int directory, const char* from, const char* to);
  /// unlinkat of a file.
  virtual int remove(int directory, const char* name);
  /// Sets a file's time stamps to now, by the clock of the machine that keeps the file.
  virtual int touch(int fd);

 private:
  const StoreSharing sharing_;
};

}  // namespace kiln::cache
