#include "cache/store.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "cache/entry.hpp"
#include "cache/entry_file.hpp"
#include "cache/record.hpp"
#include "cache/size.hpp"
#include "kiln/detail/environment.hpp"
#include "kiln/detail/format.hpp"

namespace kiln::cache {
namespace {

using nlohmann::json;
using What = DiskLevel::Found::What;

/// Keys that are looked at for an error message. In files, that may take a tenth of a millisecond
/// each.
constexpr std::size_t kMostConsidered = 10000;
constexpr std::uint64_t kDefaultSize = std::uint64_t{5} << 30, kDefaultFiles = 100'000;
/// Bytes of records that could not be written. They are kept where no memory is given to binaries,
/// too: a binary is compiled again in a second, a record is measured again in minutes.
constexpr std::size_t kLeastUnwritten = std::size_t{8} << 20;

/// How many of the fields that say what is wanted differ: in value, or because only one side has
/// them.
std::size_t difference(const Key& wanted, const Key& other) {
  const auto front = [](const Key& key) {
    return std::span(key.fields).first(std::min(key.portable_fields, key.fields.size()));
  };
  const auto missing = [](auto fields, auto from) {
    return std::ranges::count_if(fields, [&](const KeyField& field) {
      return std::ranges::find(from, field) == from.end();
    });
  };
  // A changed field is missing on both sides, under one name.
  const auto here = front(wanted), there = front(other);
  return static_cast<std::size_t>(std::max(missing(here, there), missing(there, here)));
}

}  // namespace

Store::Store(StoreOptions options, std::shared_ptr<FileSystem> fs)
    : Store(options, std::move(fs), options.disk ? locate(options.directory) : Location{},
            options.disk ? sharing(options) : StoreSharing::user) {}

Store::Store(StoreOptions options, std::shared_ptr<FileSystem> fs, Location location,
             StoreSharing sharing)
    : options_(std::move(options)),
      no_directory_(std::move(location.reason)),
      disk_(std::move(location.directory),
            fs ? std::move(fs) : std::make_shared<FileSystem>(sharing),
            sharing == StoreSharing::group ? Owner::group : Owner::self),
      evictor_(disk_, limits(options_)),
      index_(disk_),
      roots_(options_),
      binaries_(options_.memory_bytes),
      unwritten_(std::max(options_.memory_bytes, kLeastUnwritten)) {
  if (sharing == StoreSharing::group)
    log(LogLevel::info,
        "cache: " + disk_.directory().string() +
            " is shared with its group: every member can put code there that this process runs");
}

StoreLimits Store::limits(const StoreOptions& options) {
  const auto limit = [&](std::uint64_t asked, const char* variable, std::string_view text,
                         const char* such, std::uint64_t by_default, const char* shown) {
    if (asked != 0) return asked;
    if (text.empty()) return by_default;
    const auto size = parse_size(text);
    if (!size && options.log)
      options.log(LogLevel::warning,
                  detail::format("cache: {} is '{}', which is not a {}; using {}", variable, text,
                                 such, shown));
    return size.value_or(0) != 0 ? *size : by_default;
  };
  return {limit(options.max_bytes, "KILN_CACHE_SIZE", detail::environment("KILN_CACHE_SIZE"),
                "size such as 500M or 5G", kDefaultSize, "5G"),
          limit(options.max_files, "KILN_CACHE_FILES", detail::environment("KILN_CACHE_FILES"),
                "number such as 5000 or 50K", kDefaultFiles, "100000")};
}

StoreSharing Store::sharing(const StoreOptions& options) {
  if (options.sharing) return *options.sharing;
  const std::string_view text = detail::environment("KILN_CACHE_SHARED");
  if (text == "group") return StoreSharing::group;
  if (!text.empty() && text != "user" && options.log)
    options.log(
        LogLevel::warning,
        detail::format("cache: KILN_CACHE_SHARED is '{}', not user or group; using user", text));
  return StoreSharing::user;
}

void Store::log(LogLevel level, const std::string& text) const {
  if (options_.log) options_.log(level, text);
}

void Store::warn_once(const Failure& failure) {
  const bool first = !warned_.exchange(true);
  log(first ? LogLevel::warning : LogLevel::debug,
      "cache: " + failure.what + "; " + failure.advice +
          (first ? ". Kiln continues in memory only" : ""));
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
  const auto finding = [&](Finding what, const std::string& why, const char* advice) {
    return Judgement{what, {"entry " + key.hex() + ": " + why, advice}};
  };
  switch (decoded.status) {
    case DecodeStatus::damaged:
      return finding(Finding::damaged, decoded.why, "the next write repairs it");
    case DecodeStatus::older:
      return finding(Finding::older, decoded.why, "the next write replaces it");
    case DecodeStatus::newer:
      return finding(Finding::newer, decoded.why, "it is left alone");
    case DecodeStatus::valid:
      break;
  }
  if (!same_key(kind, decoded.key, key))
    return finding(Finding::damaged, "it holds another key", "the next write repairs it");
  return {Finding::whole, {}};
}

bool Store::note(const Judgement& judgement) {
  using Finding = Judgement::Finding;
  if (judgement.finding == Finding::whole) return true;
  if (judgement.finding == Finding::damaged) ++counters_.damaged;
  if (judgement.finding == Finding::failed)
    warn_once(judgement.failure);
  else if (judgement.finding != Finding::absent)
    log(LogLevel::debug, judgement.failure.what + "; " + judgement.failure.advice);
  return false;
}

std::optional<StoredEntry> Store::find_in_roots(
    EntryKind kind, const Key& key, const std::function<bool(const StoredEntry&)>& take) {
  for (const auto& root : roots_.usable())
    if (auto entry = root->find(kind, key); entry && (!take || take(*entry))) {
      ++counters_.root_hits;
      return entry;
    }
  ++counters_.misses;
  return std::nullopt;
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
  const ReadFile old = disk_.use(kind, hex);
  if (old.status == ReadFile::Status::read && std::ranges::equal(old.bytes, file)) return true;
  const auto finding = judge(old, summarize(kind, old.bytes), kind, key).finding;
  if (finding == Judgement::Finding::newer) return false;
  if (file.size() > DiskLevel::kMaxFile) {
    log(LogLevel::debug, "entry " + hex + " is too large to be kept on disk");
    return false;
  }
  if (const auto failure = disk_.publish(kind, hex, file)) {
    write_failed(*failure);
    return false;
  }
  ++counters_.writes;
  if (finding == Judgement::Finding::damaged) ++counters_.repaired;
  {
    std::lock_guard lock(failure_mutex_);
    write_failure_.clear();
  }
  evictor_.wrote(file.size());
  return true;
}

std::optional<detail::Bytes> Store::find(const Key& key) {
  if (auto bytes = binaries_.find(key.digest)) {
    ++counters_.memory_hits;
    return bytes;
  }
  const ReadFile file = disk_.use(EntryKind::binary, key.hex());
  const DecodedEntry entry = decode_entry(file.bytes);
  detail::Bytes payload;
  if (note(judge(file, entry, EntryKind::binary, key))) {
    ++counters_.disk_hits;
    payload = file.bytes.part(entry.payload_offset, entry.payload_size);
  } else if (auto found = find_in_roots(EntryKind::binary, key)) {
    payload = std::move(found->payload);
  } else {
    return std::nullopt;
  }
  if (options_.memory_bytes > 0) binaries_.put(key, payload);
  return payload;
}

void Store::put(const Key& key, detail::Bytes binary) {
  const std::vector<std::byte> file = encode_entry(key, binary);
  binaries_.put(key, std::move(binary));
  publish(key, EntryKind::binary, file);
}

std::optional<json> Store::find_record(const Key& key,
                                       const std::function<bool(const json&)>& accept) {
  const auto accepted = [&](const std::optional<json>& record) {
    return record && (!accept || accept(*record));
  };
  std::optional<json> record;
  if (const auto text = unwritten_.find(key.digest))
    if (record = parse_record(*text); accepted(record)) {
      ++counters_.memory_hits;
      return record;
    }
  const ReadFile file = disk_.use(EntryKind::record, key.hex());
  DecodedRecord decoded = decode_record(text_of(file.bytes));
  if (note(judge(file, decoded, EntryKind::record, key)))
    if (record = std::move(decoded.record); accepted(record)) {
      ++counters_.disk_hits;
      return record;
    }
  const auto found = find_in_roots(EntryKind::record, key, [&](const StoredEntry& entry) {
    record = parse_record(entry.payload);
    return accepted(record);
  });
  return found ? std::move(record) : std::nullopt;
}

void Store::put_record(const Key& key, const json& record) {
  if (is_too_deep(record))
    return log(LogLevel::debug, "record " + key.hex() + " is nested too deeply to be kept");
  if (publish(key, EntryKind::record, bytes_of(encode_record(key, record))))
    unwritten_.erase(key.digest);
  else
    unwritten_.put(key, bytes_of(record_text(record)));
}

void Store::drop(EntryKind kind, const Digest& digest) {
  const std::string hex = to_hex(digest);
  if (const auto stamp = disk_.stamp(kind, hex)) disk_.remove(kind, hex, *stamp);
}

WorkLock::Outcome Store::lock(EntryKind kind, const Key& key, WorkLock& lock,
                              const std::function<bool()>& give_up) {
  using Outcome = WorkLock::Outcome;
  if (disk_.directory().empty()) return Outcome::unusable;
  const std::string hex = key.hex();
  const auto before = disk_.stamp(kind, hex);
  // Made by another process between the caller's look-up and now: nothing to wait for.
  const auto is_whole = [&] {
    const ReadFile file = disk_.read(kind, hex);
    return file.status == ReadFile::Status::read &&
           judge(file, summarize(kind, file.bytes), kind, key).finding == Judgement::Finding::whole;
  };
  // A record that is there may be what the caller wants to add to; only a later one is news.
  const auto is_new = [&] {
    const auto now = disk_.stamp(kind, hex);
    return now && now != before;
  };
  LockTimes times;
  times.deadline =
      std::chrono::milliseconds(std::llround(std::clamp(options_.lock_deadline, 0.0, 1e9) * 1000));
  if (times.deadline.count() > 0)
    times.beat = std::clamp(times.deadline / 10, std::chrono::milliseconds(1), times.beat);
  if (kind == EntryKind::binary && before && is_whole()) return Outcome::ready;
  const Outcome outcome = lock.acquire(disk_, hex, times, is_new, give_up);
  if (lock.waited()) ++counters_.waits;
  if (outcome != Outcome::held || !is_new()) return outcome;
  lock.release();
  return Outcome::ready;
}

std::optional<StoredEntry> Store::find_portable_here(
    EntryKind kind, const Digest& portable, const std::function<bool(const Key&)>& accept,
    const std::function<bool(const StoredEntry&)>& take) {
  const MemoryLevel& memory = kind == EntryKind::binary ? binaries_ : unwritten_;
  for (auto& [key, payload] : memory.find_portable(portable))
    if (StoredEntry entry{key, payload}; accept(key) && (!take || take(entry))) {
      ++counters_.memory_hits;
      return entry;
    }
  if (disk_.directory().empty()) return std::nullopt;
  std::vector<std::string> seen;
  for (const bool again : {false, true}) {
    if (again) index_.refresh(kind);  // what other processes have written since
    std::vector<std::string> names = index_.find(kind, portable);
    if (again && names == seen) break;
    for (const std::string& hex : names) {
      auto entry = read_accepted(disk_, kind, hex, [&](const Key& key) {
        return key.portable == portable && accept(key);
      });
      if (!entry || (take && !take(*entry))) continue;
      ++counters_.disk_hits;
      if (kind == EntryKind::binary && options_.memory_bytes > 0)
        binaries_.put(entry->key, entry->payload);
      return entry;
    }
    seen = std::move(names);
  }
  return std::nullopt;
}

std::optional<StoredEntry> Store::find_portable(
    EntryKind kind, const Digest& portable, Where where,
    const std::function<bool(const Key&)>& accept,
    const std::function<bool(const StoredEntry&)>& take) {
  if (where == Where::anywhere)
    if (auto entry = find_portable_here(kind, portable, accept, take)) return entry;
  for (const auto& root : roots_.usable()) {
    std::set<std::string> looked_at;
    for (const bool again : {false, true}) {
      if (again && !root->refresh(kind)) break;
      for (StoredEntry& entry : root->find_portable(kind, portable, looked_at)) {
        if (accept(entry.key) && (!take || take(entry))) {
          ++counters_.root_hits;
          return std::move(entry);
        }
        looked_at.insert(entry.key.hex());
      }
    }
  }
  if (where == Where::anywhere) ++counters_.misses;
  return std::nullopt;
}

std::vector<Key> Store::portable_keys(EntryKind kind, const Digest& portable, Where where) {
  std::vector<Key> keys;
  const auto note = [&](const Key& key) {
    keys.push_back(key);
    return false;
  };
  if (where == Where::anywhere) find_portable_here(kind, portable, note, {});
  for (const auto& root : roots_.usable()) {
    root->refresh(kind);
    for (StoredEntry& entry : root->find_portable(kind, portable))
      keys.push_back(std::move(entry.key));
  }
  return keys;
}

std::optional<Key> Store::closest(EntryKind kind, const Key& wanted,
                                  const std::function<bool(const Key&)>& accept) {
  std::optional<Key> best;
  std::size_t least = 0;
  std::size_t considered = 0;
  const auto consider = [&](const Key& key) {
    ++considered;
    if (!accept(key)) return;
    const std::size_t differing = difference(wanted, key);
    // Among equally near keys the lowest digest wins, so that the answer does not depend on where
    // it was found.
    if (best && std::tie(least, best->digest) <= std::tie(differing, key.digest)) return;
    best = key;
    least = differing;
  };
  const MemoryLevel& memory = kind == EntryKind::binary ? binaries_ : unwritten_;
  for (const auto& [key, payload] : memory.snapshot()) consider(key);
  disk_.walk([&](const DiskLevel::Found& found) {
    if (found.what != What::entry || found.kind != kind || !found.regular ||
        considered >= kMostConsidered)
      return;
    if (const auto key = read_key(disk_, found)) consider(*key);
  });
  for (const auto& root : roots_.usable())
    root->each_key(kind, [&](const Key& key) {
      consider(key);
      return considered < kMostConsidered;
    });
  return best;
}

bool Store::has_roots() const noexcept { return roots_.any(); }

std::vector<std::string> Store::root_problems() { return roots_.problems(); }

void Store::each_record(const std::function<void(const Key&, const json&)>& visit) {
  std::set<Digest> seen;
  const auto visit_once = [&](const Key& key, const json& record) {
    if (seen.insert(key.digest).second) visit(key, record);
  };
  for (const auto& [key, text] : unwritten_.snapshot())
    if (const auto record = parse_record(text)) visit_once(key, *record);
  disk_.walk([&](const DiskLevel::Found& found) {
    if (found.what != What::entry || found.kind != EntryKind::record) return;
    const ReadFile file = disk_.read(found.kind, found.hex);
    const DecodedRecord record = decode_record(text_of(file.bytes));
    if (record.status == DecodeStatus::valid && record.key.hex() == found.hex)
      visit_once(record.key, record.record);
  });
  for (const auto& root : roots_.usable())
    root->each_key(EntryKind::record, [&](const Key& key) {
      if (seen.contains(key.digest)) return true;
      const auto entry = root->find(EntryKind::record, key);
      const auto record = entry ? parse_record(entry->payload) : std::nullopt;
      if (record) visit_once(entry->key, *record);
      return true;
    });
}

}  // namespace kiln::cache
