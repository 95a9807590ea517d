#include "cache/remove_if.hpp"

#include <cerrno>

#include "cache/atomic_file.hpp"

namespace kiln::cache {

Removal remove_if(FileSystem& fs, int directory, const std::string& name,
                  const std::function<bool(const std::string& name)>& is_meant) {
  errno = 0;
  if (!is_meant(name)) return errno == ENOENT ? Removal::absent : Removal::other;
  const std::string aside = AtomicFile::temporary_name();
  if (fs.rename(directory, name.c_str(), aside.c_str()) != 0)
    return errno == ENOENT ? Removal::absent : Removal::failed;
  if (is_meant(aside))
    return fs.remove(directory, aside.c_str()) == 0 ? Removal::removed : Removal::failed;
  if (fs.rename_new(directory, aside.c_str(), name.c_str()) == 0) return Removal::other;
  // On a file system without an exclusive rename, the older of two whole files is better than none.
  if (errno == EEXIST)
    fs.remove(directory, aside.c_str());
  else
    fs.rename(directory, aside.c_str(), name.c_str());
  return Removal::other;
}

}  // namespace kiln::cache
