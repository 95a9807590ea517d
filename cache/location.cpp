#include "cache/location.hpp"

#include <system_error>
#include <vector>

#include <pwd.h>
#include <unistd.h>

#include "kiln/detail/environment.hpp"

namespace kiln::cache {

namespace fs = std::filesystem;
using detail::environment;

namespace {

std::filesystem::path home_of_user() {
  std::vector<char> buffer(16384);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr || found->pw_dir == nullptr)
    return {};
  return found->pw_dir;
}

Location normal(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return {{}, path.string() + " is relative, but there is no current directory"};
  absolute = absolute.lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // a trailing slash
  return {std::move(absolute), {}};
}

}  // namespace

Location locate(const std::filesystem::path& named) {
  if (!named.empty()) return normal(named);
  if (const fs::path path = environment("KILN_CACHE_DIR"); !path.empty()) return normal(path);
  // The XDG specification says to ignore relative values.
  if (const fs::path path = environment("XDG_CACHE_HOME"); path.is_absolute())
    return normal(path / "kiln");
  if (const fs::path path = environment("HOME"); path.is_absolute())
    return normal(path / ".cache" / "kiln");
  if (auto path = home_of_user(); path.is_absolute()) return normal(path / ".cache" / "kiln");
  return {{}, "HOME is not set, and this user has no home directory; set KILN_CACHE_DIR"};
}

}  // namespace kiln::cache
