// What `kiln cache` asks of a store, apart from its daily work.
#include <cctype>
#include <cerrno>
#include <chrono>
#include <utility>

#include "cache/entry_file.hpp"
#include "cache/store.hpp"
#include "cache/store_identity.hpp"
#include "kiln/error.hpp"

namespace kiln::cache {
namespace {

using What = DiskLevel::Found::What;

std::chrono::system_clock::time_point used(const Stamp& stamp) {
  using std::chrono::system_clock;
  return system_clock::time_point(std::chrono::duration_cast<system_clock::duration>(
      std::chrono::nanoseconds(stamp.modified_ns)));
}

}  // namespace

std::optional<std::uint64_t> Store::identity() {
  if (!options_.disk) return {};
  return identity_of(disk_);
}

std::vector<StoreEntry> Store::explain(std::string_view hex_prefix) {
  std::string prefix(hex_prefix);
  for (char& c : prefix) {
    if (!std::isxdigit(static_cast<unsigned char>(c)))
      throw UserError("a key is given as hexadecimal digits, not as '" + prefix + "'");
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  std::vector<StoreEntry> entries;
  disk_.walk([&](const DiskLevel::Found& found) {
    if (found.what != What::entry || !found.hex.starts_with(prefix)) return;
    const ReadFile file = disk_.read(found.kind, found.hex);
    Summary summary = summarize(found.kind, file.bytes);
    if (summary.status == DecodeStatus::valid && summary.key.hex() == found.hex)
      entries.push_back(
          {found.kind, std::move(summary.key), found.path, file.bytes.size(), used(file.stamp)});
  });
  return entries;
}

StoreStatistics Store::stats() {
  StoreStatistics stats;
  stats.directory = disk_.directory();
  stats.memory_hits = counters_.memory_hits;
  stats.disk_hits = counters_.disk_hits;
  stats.misses = counters_.misses;
  stats.damaged = counters_.damaged;
  stats.repaired = counters_.repaired;
  stats.writes = counters_.writes;
  stats.failed_writes = counters_.failed_writes;
  stats.root_hits = counters_.root_hits;
  stats.waits = counters_.waits;
  stats.evicted = evictor_.evicted();
  stats.max_bytes = evictor_.limit().bytes;
  stats.max_files = evictor_.limit().files;
  stats.roots = roots_.statistics();
  disk_.walk([&](const DiskLevel::Found& found) {
    if (found.what != What::entry || !found.regular) return;
    ++(found.kind == EntryKind::binary ? stats.binaries : stats.records);
    stats.bytes += found.stamp.bytes;
    ++stats.files;
  });

  stats.reason = known_obstacle();
  stats.memory_only = !stats.reason.empty();
  return stats;
}

std::string Store::known_obstacle() {
  if (!options_.disk) return "the options turn the disk off";
  if (!no_directory_.empty()) return no_directory_ + "; set KILN_CACHE_DIR";
  if (const auto refusal = disk_.refusal()) return refusal->what + "; " + refusal->advice;
  const std::lock_guard lock(failure_mutex_);
  return write_failure_;
}

std::string Store::obstacle() {
  if (std::string known = known_obstacle(); !known.empty()) return known;
  const auto failure = disk_.try_to_write();
  return failure ? failure->what + "; " + failure->advice : std::string();
}

VerifyReport Store::verify() {
  VerifyReport report;
  disk_.walk([&](const DiskLevel::Found& found) {
    const auto problem = [&](std::string reason) {
      report.problems.push_back({found.path, std::move(reason)});
    };
    const auto unreadable = [&](std::string reason) {
      report.unreadable.push_back({found.path, std::move(reason)});
    };
    if (found.what == What::refused_directory) return unreadable(found.why);
    if (found.what == What::temporary) {
      ++report.unfinished;
      return;
    }
    const ReadFile file = disk_.read(found.kind, found.hex);
    if (file.status == ReadFile::Status::absent) return;  // removed while we looked
    ++report.checked;
    if (file.status == ReadFile::Status::failed || file.forbidden)
      return unreadable(file.failure.what);
    if (file.status == ReadFile::Status::damaged) return problem(file.failure.what);
    const Summary summary = summarize(found.kind, file.bytes);
    if (summary.status == DecodeStatus::newer) ++report.newer;
    if (summary.status == DecodeStatus::damaged || summary.status == DecodeStatus::older)
      problem(summary.why);
    if (summary.status == DecodeStatus::valid && summary.key.hex() != found.hex)
      problem("it holds another key, " + summary.key.hex());
  });
  return report;
}

TrimReport Store::trim(std::uint64_t max_bytes, std::uint64_t max_files) {
  if (const auto refusal = disk_.refusal())
    throw EnvironmentError("trimming the cache: " + refusal->what + "; " + refusal->advice);
  if (disk_.directory().empty()) return {};
  std::string problem;
  const TrimReport report = evictor_.trim({max_bytes, max_files}, problem);
  if (!problem.empty())
    throw EnvironmentError("trimming the cache: " + problem + " (" +
                           std::to_string(report.entries) + " entries were removed)");
  return report;
}

std::size_t Store::clear() {
  binaries_.clear();
  unwritten_.clear();
  std::size_t removed = 0;
  std::string problem;
  disk_.walk([&](const DiskLevel::Found& found) {
    if (found.what == What::refused_directory) {
      problem = found.why;
    } else if (found.regular) {
      if (disk_.file_system()->remove(found.directory, found.name.c_str()) == 0)
        ++removed;
      else if (errno != ENOENT)
        problem = call_failure("unlink", found.path.string(), errno).what;
    }
  });
  if (!problem.empty())
    throw EnvironmentError("clearing the cache: " + problem + " (" + std::to_string(removed) +
                           " files were removed)");
  return removed;
}

}  // namespace kiln::cache
