// Opens directories such that no other user can tamper with what is read from them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cache/file_system.hpp"
#include "cache/unique_fd.hpp"

namespace kiln::cache {

/// Whose files may be read: one's own, or, where nothing is ever written, also another user's.
enum class Owner { self, anyone };

/// The result of opening a directory: a descriptor that is safe to use, or neither descriptor nor
/// failure where the directory does not exist, or the failure.
struct GuardedDirectory {
  UniqueFd fd;
  std::optional<Failure> failure;
};

/// Opens `name` relative to `parent` (AT_FDCWD: as it is). Refused: anything that is not a
/// directory, a symbolic link, another user's directory unless `owner` allows it (also when running
/// as root), writable by group or others. `path` is for messages only.
GuardedDirectory open_guarded(int parent, const std::string& name, const std::string& path,
                              Owner owner = Owner::self);

/// As open_guarded, creating the directory where it does not exist (its parents too where `parent`
/// is AT_FDCWD, which must then come with an absolute path).
GuardedDirectory create_guarded(FileSystem& fs, int parent, const std::string& name,
                                const std::string& path);

/// What is in a directory, sorted; nothing if it cannot be read.
std::optional<std::vector<std::string>> names_in(int directory);

}  // namespace kiln::cache
