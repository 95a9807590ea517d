#include "runtime/support/machine.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <sched.h>
#include <unistd.h>

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
  const char *limit, *threshold, *used, *cached;
};
constexpr Names kFirstVersion{"memory.limit_in_bytes", nullptr, "memory.usage_in_bytes",
                              "total_inactive_file"};
/// Beyond `memory.high` processes are slowed down until they give memory back.
constexpr Names kSecondVersion{"memory.max", "memory.high", "memory.current", "inactive_file"};

/// What one group may still take. Memory of files that it has read and no longer uses counts as
/// free.
Bytes64 left_in(const fs::path& group, const Names& names) {
  Bytes64 limit = number_in(group / names.limit);
  const Bytes64 used = number_in(group / names.used);
  if (names.threshold)
    if (const Bytes64 threshold = number_in(group / names.threshold))
      limit = std::min(limit.value_or(*threshold), *threshold);
  if (!limit || !used) return {};
  return std::max<std::int64_t>(
      0, *limit - *used + number_after(group / "memory.stat", names.cached).value_or(0));
}

/// What one group grants of its processors' time, in cores.
std::optional<double> cores_of(const fs::path& group, bool second_version) {
  double quota = 0, period = 0;
  if (second_version) {
    std::ifstream in(group / "cpu.max");
    if (!(in >> quota >> period)) return {};  // `max 100000` is no limit
  } else {
    quota = static_cast<double>(number_in(group / "cpu.cfs_quota_us").value_or(-1));
    period = static_cast<double>(number_in(group / "cpu.cfs_period_us").value_or(0));
  }
  if (!(quota > 0) || !(period > 0)) return {};
  return quota / period;
}

/// The least that `left` returns for a group and for the groups around it. Within a container the
/// group's path is not the listed one, so folders that do not exist are skipped, up to the mount
/// itself.
template <class T, class Left>
std::optional<T> least_up_to(const fs::path& mount, const std::string& path, const Left& left) {
  std::optional<T> least;
  for (fs::path at = fs::path(path).relative_path();; at = at.parent_path()) {
    if (const std::optional<T> here = left(mount / at); here && (!least || *here < *least))
      least = here;
    if (at.empty()) return least;
  }
}

/// The least over this process's groups of a controller. Lines are `0::/path` (v2) and
/// `5:memory:/path` (v1). `left` is given a group's folder, and whether it is of v2.
template <class T, class Left>
std::optional<T> least_of_groups(const fs::path& root, const std::string& controller,
                                 const Left& left) {
  std::ifstream in(root / "proc/self/cgroup");
  std::optional<T> least;
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const std::string controllers = "," + names + ",";
    const bool second_version = controllers == ",,";
    if (!second_version && controllers.find("," + controller + ",") == std::string::npos) continue;
    fs::path mount = root / "sys/fs/cgroup";
    if (!second_version) {
      // The link from `cpu` to `cpu,cpuacct` is the distribution's, not the kernel's.
      std::error_code error;
      const fs::path alone = mount / controller;
      mount = fs::exists(alone, error) ? alone : mount / names;
    }
    const auto here = least_up_to<T>(mount, line.substr(second + 1), [&](const fs::path& group) {
      return left(group, second_version);
    });
    if (here && (!least || *here < *least)) least = here;
  }
  return least;
}

/// The cores that the calling thread may run on.
unsigned allowed_cores() {
  // The kernel refuses a set that is smaller than its own.
  for (std::size_t words = 16; words <= 4096; words *= 4) {
    std::vector<cpu_set_t> set(words * 64 / CPU_SETSIZE + 1);
    const std::size_t bytes = set.size() * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, bytes, set.data()) == 0)
      return static_cast<unsigned>(CPU_COUNT_S(bytes, set.data()));
  }
  return std::thread::hardware_concurrency();
}

}  // namespace

std::optional<std::int64_t> available_memory(const fs::path& root) {
  Bytes64 available = number_after(root / "proc/meminfo", "MemAvailable:");
  if (available) *available *= 1024;
  const Bytes64 group =
      least_of_groups<std::int64_t>(root, "memory", [](const fs::path& folder, bool second) {
        return left_in(folder, second ? kSecondVersion : kFirstVersion);
      });
  return group && (!available || *group < *available) ? group : available;
}

void require_memory(const char* what, std::uint64_t bytes) {
  if (bytes < kNoMatter) return;
  const auto there = available_memory();
  if (there && bytes > static_cast<std::uint64_t>(*there))
    throw UserError(detail::format("{}: {} bytes of memory are needed, but only {} are available",
                                   what, bytes, *there));
}

unsigned usable_cores(const fs::path& root) {
  unsigned cores = std::max(1U, allowed_cores());
  if (const auto granted = least_of_groups<double>(root, "cpu", cores_of);
      granted && *granted < cores)
    cores = static_cast<unsigned>(std::max(1.0, std::ceil(*granted)));
  return cores;
}

unsigned cores_shared_by(unsigned processes) {
  const unsigned cores = usable_cores();
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (online > 0 && allowed_cores() * processes <= static_cast<unsigned>(online)) return cores;
  return std::max(1U, cores / std::max(1U, processes));
}

unsigned jobs_that_fit(unsigned jobs, std::int64_t bytes, const fs::path& root) {
  const auto memory = available_memory(root);
  if (!memory || jobs == 0) return jobs;
  return static_cast<unsigned>(std::clamp<std::int64_t>(*memory / bytes, 1, jobs));
}

}  // namespace kiln::runtime
