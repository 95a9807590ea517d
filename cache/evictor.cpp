#include "cache/evictor.hpp"

#include <algorithm>
#include <ctime>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>

#include "cache/atomic_file.hpp"
#include "cache/entry_file.hpp"
#include "cache/work_lock.hpp"

namespace kiln::cache {
namespace {

using What = DiskLevel::Found::What;

constexpr const char* kLockName = "evict";

/// How much may be written between two looks: little compared with the limit, because many
/// processes write at the same time, and much compared with what a look costs.
std::uint64_t interval(std::uint64_t limit) { return std::max<std::uint64_t>(limit / 256, 1); }

std::uint64_t nine_tenths(std::uint64_t limit) { return limit - limit / 10; }

bool is_within(const TrimReport& report, const StoreLimits& limits) {
  return report.left <= limits.bytes && report.left_files <= limits.files;
}

bool is_abandoned(const Stamp& stamp, std::int64_t now_ns) {
  return now_ns - stamp.modified_ns > DiskLevel::kAbandonedSeconds * kNanoseconds;
}

struct Candidate {
  EntryKind kind;
  std::string hex;
  Stamp stamp;
};

}  // namespace

/// Looks at as few shards as suffice. Entries spread evenly over them, since their names are
/// digests.
bool Evictor::is_too_full() {
  constexpr std::uint64_t kEnough = 2000;  // entries that stand for all
  constexpr double kSurely = 0.8;          // of the limit, by an estimate from kEnough
  std::random_device random;
  const unsigned first = random();
  std::uint64_t bytes = 0, entries = 0;
  const auto may_exceed = [](double estimate, std::uint64_t limit) {
    return estimate >= kSurely * static_cast<double>(limit);
  };
  for (unsigned i = 1; i <= DiskLevel::kShards; ++i) {
    for (const EntryKind kind : {EntryKind::binary, EntryKind::record})
      disk_.walk_shard(kind, (first + 101 * i) % DiskLevel::kShards,
                       [&](const DiskLevel::Found& found) {
                         if (found.what != What::entry || !found.regular) return;
                         bytes += found.stamp.bytes;
                         ++entries;
                       });
    const double part = static_cast<double>(i) / DiskLevel::kShards;
    if (entries >= kEnough && !may_exceed(static_cast<double>(bytes) / part, limit_.bytes) &&
        !may_exceed(static_cast<double>(entries) / part, limit_.files))
      return false;
    if (bytes > limit_.bytes || entries > limit_.files) return true;
  }
  return false;
}

std::uint64_t Evictor::sweep_locks(std::int64_t now_ns) {
  std::uint64_t swept = 0;
  const DiskLevel::SharedFd locks = disk_.locks(false);
  if (!locks) return 0;
  const auto names = names_in(locks->get());
  if (!names) return 0;
  for (const std::string& name : *names) {
    struct stat status{};
    if ((!name.ends_with(WorkLock::kExtension) && !AtomicFile::is_temporary(name)) ||
        ::fstatat(locks->get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode) || !is_abandoned(Stamp::of(status), now_ns))
      continue;
    swept += disk_.remove(locks->get(), name, Stamp::of(status));
  }
  return swept;
}

std::int64_t Evictor::now_ns() {
  if (const auto now = disk_.now_ns(true)) return *now;
  timespec now{};  // the best guess where no file can be made
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kNanoseconds + now.tv_nsec;
}

void Evictor::wrote(std::uint64_t bytes) {
  const std::uint64_t unchecked = unchecked_ += bytes, files = ++unchecked_files_;
  if (looked_ && unchecked < interval(limit_.bytes) && files < interval(limit_.files)) return;
  if (busy_.exchange(true)) return;  // another thread is looking
  struct Free {
    std::atomic<bool>& busy;
    ~Free() { busy = false; }
  } free{busy_};
  looked_ = true;
  unchecked_ = unchecked_files_ = 0;
  if (is_too_full()) {
    const std::int64_t now = now_ns();
    sweep_locks(now);
    LockTimes times;
    times.deadline = std::chrono::milliseconds(0);
    WorkLock lock;
    if (lock.acquire(disk_, kLockName, times, [] { return false; }) == WorkLock::Outcome::held)
      reduce(limit_, {nine_tenths(limit_.bytes), nine_tenths(limit_.files)}, now);
  }
}

TrimReport Evictor::trim(const StoreLimits& target, std::string& problem) {
  const std::int64_t now = now_ns();
  const std::uint64_t locks = sweep_locks(now);
  TrimReport report = reduce(target, target, now, &problem);
  report.abandoned += locks;
  return report;
}

/// If there is more than `limit`, evicts entries down to `target`.
TrimReport Evictor::reduce(const StoreLimits& limit, const StoreLimits& target, std::int64_t now_ns,
                           std::string* problem) {
  TrimReport report;
  std::vector<Candidate> candidates;
  disk_.walk([&](const DiskLevel::Found& found) {
    if (found.what == What::refused_directory && problem != nullptr) *problem = found.why;
    if (!found.regular) return;
    if (found.what == What::entry) {
      candidates.push_back({found.kind, found.hex, found.stamp});
      report.left += found.stamp.bytes;
      ++report.left_files;
    } else if (found.what == What::temporary && is_abandoned(found.stamp, now_ns)) {
      report.abandoned += disk_.remove(found.directory, found.name, found.stamp);
    }
  });
  if (is_within(report, limit)) return report;
  std::ranges::sort(candidates, {}, [](const Candidate& entry) {
    return std::tie(entry.kind, entry.stamp.modified_ns, entry.hex);
  });
  for (const Candidate& entry : candidates) {
    if (is_within(report, target)) break;
    if (is_newer(disk_, entry.kind, entry.hex)) continue;
    report.left -= entry.stamp.bytes;
    --report.left_files;
    if (disk_.remove(entry.kind, entry.hex, entry.stamp)) {
      report.bytes += entry.stamp.bytes;
      ++report.entries;
    } else if (const auto now = disk_.stamp(entry.kind, entry.hex)) {
      ++report.left_files;
      report.left += now->bytes;  // replaced or used just now; else another evictor was quicker
    }
  }
  evicted_ += report.entries;
  return report;
}

}  // namespace kiln::cache
