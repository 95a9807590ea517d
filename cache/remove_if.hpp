// Removing a file only if it is the one that is meant, while others may put another in its place.
#pragma once

#include <functional>
#include <string>

#include "cache/file_system.hpp"

namespace kiln::cache {

enum class Removal {
  removed,
  other,   ///< what is there is not what was meant: it stays
  absent,  ///< nothing is there
  failed,  ///< errno says why
};

/// Calls `is_meant(name)` for the file under its own name, then once more under a temporary one,
/// where nobody can replace it. If it then turns out to be another file, it gets its name back, or
/// is removed as replaced if a third file has taken that name meanwhile. No file is lost, but for
/// an instant one may not be found. Removers of one directory take turns, which end with their
/// process. Only where turns fail may an older file return that another had replaced: a remover is
/// stopped in its turn for half a second, or the file system has no locks, or none between hosts
/// (NFS).
Removal remove_if(FileSystem& fs, int directory, const std::string& name,
                  const std::function<bool(const std::string& name)>& is_meant);

}  // namespace kiln::cache
