#include "runtime/device/host/available_memory.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kNoMatter = std::uint64_t{64} << 20;

using Bytes64 = std::optional<std::int64_t>;

/// The number that is the content of a file; nothing for `max`, or if there is no such file.
Bytes64 number_in(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t value = 0;
  return in >> value ? Bytes64(value) : std::nullopt;
}

/// The number behind a word that begins a line.
Bytes64 number_after(const fs::path& file, const std::string& word) {
  std::ifstream in(file);
  std::int64_t value = 0;
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(word) && line.size() > word.size() && line[word.size()] == ' ')
      return std::sscanf(line.c_str() + word.size(), "%ld", &value) == 1 ? Bytes64(value)
                                                                         : std::nullopt;
  return {};
}

struct Names {
  const char *limit, *used, *cached;
};
constexpr Names kFirstVersion{"memory.limit_in_bytes", "memory.usage_in_bytes",
                              "total_inactive_file"};
constexpr Names kSecondVersion{"memory.max", "memory.current", "inactive_file"};

/// What one group may still take. Memory of files that it has read and no longer uses counts as
/// free.
Bytes64 left_in(const fs::path& group, const Names& names) {
  const Bytes64 limit = number_in(group / names.limit), used = number_in(group / names.used);
  if (!limit || !used) return {};
  return std::max<std::int64_t>(
      0, *limit - *used + number_after(group / "memory.stat", names.cached).value_or(0));
}

/// The least limit of a group and of the groups around it. Within a container the group's path is
/// not the listed one, so folders that do not exist are skipped, up to the mount itself.
Bytes64 left_up_to(const fs::path& mount, const std::string& path, const Names& names) {
  Bytes64 least;
  for (fs::path at = fs::path(path).relative_path();; at = at.parent_path()) {
    if (const Bytes64 left = left_in(mount / at, names); left && (!least || *left < *least))
      least = left;
    if (at.empty()) return least;
  }
}

/// Lines are `0::/path` (v2) and `5:memory:/path` (v1).
Bytes64 left_in_groups(const fs::path& root) {
  std::ifstream in(root / "proc/self/cgroup");
  Bytes64 least;
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    Bytes64 left;
    if (controllers == ",,")
      left = left_up_to(root / "sys/fs/cgroup", path, kSecondVersion);
    else if (controllers.find(",memory,") != std::string::npos)
      left = left_up_to(root / "sys/fs/cgroup/memory", path, kFirstVersion);
    if (left && (!least || *left < *least)) least = left;
  }
  return least;
}

}  // namespace

std::optional<std::int64_t> available_memory(const fs::path& root) {
  Bytes64 available = number_after(root / "proc/meminfo", "MemAvailable:");
  if (available) *available *= 1024;
  const Bytes64 group = left_in_groups(root);
  return group && (!available || *group < *available) ? group : available;
}

void require_memory(const char* what, std::uint64_t bytes) {
  if (bytes < kNoMatter) return;
  const auto there = available_memory();
  if (there && bytes > static_cast<std::uint64_t>(*there))
    throw UserError(detail::format("{}: {} bytes of memory are needed, but only {} are available",
                                   what, bytes, *there));
}

}  // namespace kiln::runtime
