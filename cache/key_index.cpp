#include "cache/key_index.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "cache/entry_file.hpp"

namespace kiln::cache {
namespace {

/// Time stamps may be as coarse as this; a directory that changed within it may change again and
/// keep its stamp.
constexpr std::chrono::seconds kCoarse{3};

/// Opening files takes turns with nobody: many are worth several threads.
template <class Items, class Work>
void for_each(const Items& items, const Work& work) {
  constexpr std::size_t kPerThread = 16, kMostThreads = 8;
  std::atomic<std::size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto take_turns = [&] {
    try {
      for (std::size_t i; (i = next++) < items.size();) work(items[i]);
    } catch (...) {
      next = items.size();
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    const std::size_t threads =
        std::min({items.size() / kPerThread, kMostThreads,
                  static_cast<std::size_t>(std::thread::hardware_concurrency())});
    std::vector<std::jthread> others;
    try {
      while (others.size() + 1 < threads) others.emplace_back(take_turns);
    } catch (const std::system_error&) {  // no more threads: those that there are do it
    }
    take_turns();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

std::size_t KeyIndex::Hash::operator()(const Digest& digest) const noexcept {
  std::size_t hash;  // any part of a SHA-256 is a hash
  std::memcpy(&hash, digest.data(), sizeof hash);
  return hash;
}

std::vector<std::string> KeyIndex::find(EntryKind kind, const Digest& portable) {
  std::lock_guard lock(mutex_);
  Kind& index = kinds_[static_cast<std::size_t>(kind)];
  if (!index.built) refresh(index, kind);
  const auto found = index.names.find(portable);
  return found == index.names.end() ? std::vector<std::string>() : found->second;
}

bool KeyIndex::refresh(EntryKind kind) {
  std::lock_guard lock(mutex_);
  return refresh(kinds_[static_cast<std::size_t>(kind)], kind);
}

bool KeyIndex::refresh(Kind& index, EntryKind kind) {
  std::vector<Due> due;
  for (unsigned number = 0; number < DiskLevel::kShards; ++number) {
    const Shard& shard = index.shards[number];
    const auto stamp = disk_.shard_stamp(kind, number);
    if (stamp ? stamp->modified_ns != shard.settled_ns : !shard.portable.empty())
      due.push_back({number, stamp.has_value()});
  }
  index.built = true;
  if (due.empty()) return false;
  // Both are taken before the listings: what changes during a listing may be missing from it.
  const Moment now{Clock::now(), disk_.now_ns(false)};
  std::atomic<bool> changed = false;
  for_each(due, [&](const Due& shard) {
    if (list(index.shards[shard.number], kind, shard, now)) changed = true;
  });
  if (!changed) return false;
  index.names.clear();
  for (const Shard& shard : index.shards)
    for (const auto& [hex, portable] : shard.portable) index.names[portable].push_back(hex);
  return true;
}

/// Whether anything is different now.
bool KeyIndex::list(Shard& shard, EntryKind kind, const Due& due, const Moment& now) {
  std::map<std::string, Digest> before = std::exchange(shard.portable, {});
  bool changed = false, unread = false;  // one that may be readable when nothing else has changed
  const auto listed = disk_.walk_shard(kind, due.number, [&](const DiskLevel::Found& found) {
    if (found.what != DiskLevel::Found::What::entry || !found.regular) return;
    const auto known = before.find(found.hex);
    if (known != before.end()) {
      shard.portable.insert(before.extract(known));
    } else if (const auto key = read_key(disk_, found, &unread); key && key->portable_fields != 0) {
      shard.portable.emplace(found.hex, key->portable);
      changed = true;
    }
  });
  if (!listed && due.is_there) shard.portable.swap(before);  // not readable just now
  changed |= !before.empty();
  shard.settled_ns = 0;
  if (!listed || unread) return changed;
  const std::int64_t stamp_ns = listed->modified_ns;
  if (stamp_ns != shard.listed_ns) {
    shard.listed_ns = stamp_ns;
    shard.listed_at = Clock::now();
  }
  // Only the file server's clock tells how old its stamps are. If it cannot be asked, as much time
  // has passed there as on this machine since the stamp was seen.
  if ((now.server_ns && stamp_ns < *now.server_ns - std::chrono::nanoseconds(kCoarse).count()) ||
      now.here - shard.listed_at > kCoarse)
    shard.settled_ns = stamp_ns;
  return changed;
}

}  // namespace kiln::cache
