#include "cache/store.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <utility>

#include <unistd.h>

#include "cache/entry.hpp"
#include "cache/record.hpp"
#include "kiln/error.hpp"

namespace kiln::cache {
namespace {

using nlohmann::json;
using What = DiskLevel::Found::What;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// Records replace what is not UTF-8 in a key's fields; the digest still tells such keys apart.
bool same_key(EntryKind kind, const Key& found, const Key& wanted) {
  return found.digest == wanted.digest &&
         (found.fields == wanted.fields ||
          (kind == EntryKind::record && found.fields == printable(wanted).fields));
}

/// Status, reason and key of a file of either kind, for those who need no payload.
struct Summary {
  DecodeStatus status;
  std::string why;
  Key key;
};

Summary summarize(EntryKind kind, std::span<const std::byte> file) {
  if (kind == EntryKind::binary) {
    DecodedEntry entry = decode_entry(file);
    return {entry.status, std::move(entry.why), std::move(entry.key)};
  }
  DecodedRecord record = decode_record(text_of(file));
  return {record.status, std::move(record.why), std::move(record.key)};
}

}  // namespace

Store::Store(StoreOptions options, std::shared_ptr<FileSystem> fs)
    : Store(options, std::move(fs), options.disk ? locate(options.directory) : Location{}) {}

Store::Store(StoreOptions options, std::shared_ptr<FileSystem> fs, Location location)
    : options_(std::move(options)),
      no_directory_(std::move(location.reason)),
      disk_(std::move(location.directory), fs ? std::move(fs) : std::make_shared<FileSystem>()),
      binaries_(options_.memory_bytes),
      unwritten_(options_.memory_bytes) {}

void Store::log(LogLevel level, const std::string& text) const {
  if (options_.log) options_.log(level, text);
}

void Store::warn_once(const Failure& failure) {
  const bool first = !warned_.exchange(true);
  log(first ? LogLevel::warning : LogLevel::debug,
      "cache: " + failure.what + "; " + failure.advice + (first ? ". Going on in memory" : ""));
}

template <class Decoded>
Store::Judgement Store::judge(const ReadFile& file, const Decoded& decoded, EntryKind kind,
                              const Key& key) {
  using Finding = Judgement::Finding;
  switch (file.status) {
    case ReadFile::Status::absent:
      return {Finding::absent, {}};
    case ReadFile::Status::failed:
      return {Finding::failed, file.failure};
    case ReadFile::Status::damaged:
      return {Finding::damaged, file.failure};
    case ReadFile::Status::read:
      break;
  }
  const std::string entry = "entry " + key.hex() + ": ";
  switch (decoded.status) {
    case DecodeStatus::damaged:
      return {Finding::damaged, {entry + decoded.why, "the next write repairs it"}};
    case DecodeStatus::older:
      return {Finding::older, {entry + decoded.why, "the next write replaces it"}};
    case DecodeStatus::newer:
      return {Finding::newer, {entry + decoded.why, "it is left alone"}};
    case DecodeStatus::valid:
      break;
  }
  if (!same_key(kind, decoded.key, key))
    return {Finding::damaged, {entry + "holds another key", "the next write repairs it"}};
  return {Finding::whole, {}};
}

bool Store::count(const Judgement& judgement) {
  using Finding = Judgement::Finding;
  if (judgement.finding == Finding::whole) {
    ++counters_.disk_hits;
    return true;
  }
  ++counters_.misses;
  if (judgement.finding == Finding::damaged) ++counters_.damaged;
  if (judgement.finding == Finding::failed)
    warn_once(judgement.failure);
  else if (judgement.finding != Finding::absent)
    log(LogLevel::debug, judgement.failure.what + "; " + judgement.failure.advice);
  return false;
}

void Store::write_failed(const Failure& failure) {
  ++counters_.failed_writes;
  warn_once(failure);
  std::lock_guard lock(failure_mutex_);
  write_failure_ = failure.what + "; " + failure.advice;
}

/// Whether the entry is on disk now.
bool Store::publish(const Key& key, EntryKind kind, std::span<const std::byte> file) {
  if (disk_.directory().empty()) {
    if (!no_directory_.empty()) write_failed({no_directory_, "set KILN_CACHE_DIR"});
    return false;
  }
  const std::string hex = key.hex();
  const ReadFile old = disk_.read(kind, hex);
  if (old.status == ReadFile::Status::read && std::ranges::equal(old.bytes, file)) return true;
  const auto finding = judge(old, summarize(kind, old.bytes), kind, key).finding;
  if (finding == Judgement::Finding::newer) return false;
  if (file.size() > DiskLevel::kMaxFile) {
    log(LogLevel::debug, "entry " + hex + " is too large for the disk");
    return false;
  }
  if (const auto failure = disk_.publish(kind, hex, file)) {
    write_failed(*failure);
    return false;
  }
  ++counters_.writes;
  if (finding == Judgement::Finding::damaged) ++counters_.repaired;
  std::lock_guard lock(failure_mutex_);
  write_failure_.clear();
  return true;
}

std::optional<std::vector<std::byte>> Store::find(const Key& key) {
  if (const auto bytes = binaries_.find(key.digest)) {
    ++counters_.memory_hits;
    return *bytes;
  }
  ReadFile file = disk_.read(EntryKind::binary, key.hex());
  const DecodedEntry entry = decode_entry(file.bytes);
  if (!count(judge(file, entry, EntryKind::binary, key))) return std::nullopt;
  // Cut to the payload in place: a second buffer would cost as much as reading.
  std::vector<std::byte> payload = std::move(file.bytes);
  payload.resize(entry.payload_offset + entry.payload_size);
  payload.erase(payload.begin(),
                payload.begin() + static_cast<std::ptrdiff_t>(entry.payload_offset));
  if (options_.memory_bytes > 0) binaries_.put(key, payload);
  return payload;
}

void Store::put(const Key& key, std::span<const std::byte> binary) {
  binaries_.put(key, {binary.begin(), binary.end()});
  publish(key, EntryKind::binary, encode_entry(key, binary));
}

std::optional<json> Store::find_record(const Key& key) {
  if (const auto text = unwritten_.find(key.digest)) {
    ++counters_.memory_hits;
    return json::parse(text_of(*text));
  }
  const ReadFile file = disk_.read(EntryKind::record, key.hex());
  DecodedRecord record = decode_record(text_of(file.bytes));
  if (!count(judge(file, record, EntryKind::record, key))) return std::nullopt;
  return std::move(record.record);
}

void Store::put_record(const Key& key, const json& record) {
  if (publish(key, EntryKind::record, bytes_of(encode_record(key, record))))
    unwritten_.erase(key.digest);
  else
    unwritten_.put(key, bytes_of(record.dump(-1, ' ', false, json::error_handler_t::replace)));
}

void Store::each_record(const std::function<void(const Key&, const json&)>& visit) {
  for (const auto& [key, text] : unwritten_.snapshot()) visit(key, json::parse(text_of(*text)));
  disk_.walk([&](const DiskLevel::Found& found) {
    if (found.what != What::entry || found.kind != EntryKind::record) return;
    const ReadFile file = disk_.read(found.kind, found.hex);
    const DecodedRecord record = decode_record(text_of(file.bytes));
    if (record.status == DecodeStatus::valid && record.key.hex() == found.hex &&
        !unwritten_.find(record.key.digest))
      visit(record.key, record.record);
  });
}

std::vector<StoreEntry> Store::explain(std::string_view hex_prefix) {
  std::string prefix(hex_prefix);
  for (char& c : prefix) {
    if (!std::isxdigit(static_cast<unsigned char>(c)))
      throw UserError("a key is named by hexadecimal digits, not by '" + prefix + "'");
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  std::vector<StoreEntry> entries;
  disk_.walk([&](const DiskLevel::Found& found) {
    if (found.what != What::entry || !found.hex.starts_with(prefix)) return;
    const ReadFile file = disk_.read(found.kind, found.hex);
    Summary summary = summarize(found.kind, file.bytes);
    if (summary.status == DecodeStatus::valid && summary.key.hex() == found.hex)
      entries.push_back({found.kind, std::move(summary.key), found.path, file.bytes.size()});
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
  disk_.walk([&](const DiskLevel::Found& found) {
    if (found.what != What::entry || !found.regular) return;
    ++(found.kind == EntryKind::binary ? stats.binaries : stats.records);
    stats.bytes += found.bytes;
  });

  if (!options_.disk) {
    stats.reason = "the options ask for no disk";
  } else if (!no_directory_.empty()) {
    stats.reason = no_directory_ + "; set KILN_CACHE_DIR";
  } else if (const auto refusal = disk_.refusal()) {
    stats.reason = refusal->what + "; " + refusal->advice;
  } else {
    std::lock_guard lock(failure_mutex_);
    stats.reason = write_failure_;
  }
  stats.memory_only = !stats.reason.empty();
  return stats;
}

VerifyReport Store::verify() {
  VerifyReport report;
  disk_.walk([&](const DiskLevel::Found& found) {
    const auto problem = [&](std::string reason) {
      report.problems.push_back({found.path, std::move(reason)});
    };
    if (found.what == What::refused_directory) return problem(found.why);
    if (found.what == What::temporary) {
      ++report.unfinished;
      return;
    }
    const ReadFile file = disk_.read(found.kind, found.hex);
    if (file.status == ReadFile::Status::absent) return;  // removed while we looked
    ++report.checked;
    if (file.status != ReadFile::Status::read) return problem(file.failure.what);
    const Summary summary = summarize(found.kind, file.bytes);
    if (summary.status == DecodeStatus::newer) ++report.newer;
    if (summary.status == DecodeStatus::damaged || summary.status == DecodeStatus::older)
      problem(summary.why);
    if (summary.status == DecodeStatus::valid && summary.key.hex() != found.hex)
      problem("holds another key, " + summary.key.hex());
  });
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
      if (::unlinkat(found.directory, found.name.c_str(), 0) == 0)
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
