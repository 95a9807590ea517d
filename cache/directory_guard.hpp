// Opens directories such that no other user can tamper with what is read from them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/stat.h>

#include "cache/file_system.hpp"
#include "cache/unique_fd.hpp"

namespace kiln::cache {

/// Whose files may be read.
enum class Owner {
  self,   ///< one's own, that nobody else may write to
  group,  ///< also those of a group that this process is in, and that it may write to
  anyone  ///< any user's that nobody else may write to; where nothing is ever written
};

/// The result of opening a directory: a descriptor that is safe to use, or neither descriptor nor
/// failure where the directory does not exist, or the failure.
struct GuardedDirectory {
  UniqueFd fd;
  std::optional<Failure> failure;
};

/// Whether a file or directory may be trusted to be what its owners made. Others may never write.
bool is_trusted(const struct stat& status, Owner owner);

/// Opens `name` relative to `parent` (AT_FDCWD: as it is). Refused: anything that is not a
/// directory, a symbolic link, one that is not trusted (also when running as root). `path` is for
/// messages only.
GuardedDirectory open_guarded(int parent, const std::string& name, const std::string& path,
                              Owner owner = Owner::self);

/// As open_guarded, creating the directory where it does not exist (its parents too where `parent`
/// is AT_FDCWD, which must then come with an absolute path).
GuardedDirectory create_guarded(FileSystem& fs, int parent, const std::string& name,
                                const std::string& path, Owner owner = Owner::self);

/// What is in a directory, sorted; nothing if it cannot be read.
std::optional<std::vector<std::string>> names_in(int directory);

}  // namespace kiln::cache
