#include "cache/key_index.hpp"

#include <cstring>
#include <optional>
#include <utility>

#include "cache/entry_file.hpp"

namespace kiln::cache {
namespace {

/// Time stamps may be as coarse as this; a directory that changed within it may change again and
/// keep its stamp.
constexpr std::chrono::seconds kCoarse{3};

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
  std::vector<std::pair<unsigned, bool>> due;  // and whether it is there
  for (unsigned number = 0; number < DiskLevel::kShards; ++number) {
    const Shard& shard = index.shards[number];
    const auto stamp = disk_.shard_stamp(kind, number);
    if (stamp ? stamp->modified_ns != shard.settled_ns : !shard.portable.empty())
      due.emplace_back(number, stamp.has_value());
  }
  index.built = true;
  if (due.empty()) return false;
  // Both are of before the listings: what changes during a listing may be missing from it.
  const Clock::time_point started = Clock::now();
  const std::optional<std::int64_t> now_ns = disk_.now_ns(false);
  bool changed = false;
  for (const auto& [number, is_there] : due) {
    Shard& shard = index.shards[number];
    std::map<std::string, Digest> before = std::exchange(shard.portable, {});
    bool unread = false;  // an entry that may be readable again when nothing else has changed
    const auto listed = disk_.walk_shard(kind, number, [&](const DiskLevel::Found& found) {
      if (found.what != DiskLevel::Found::What::entry || !found.regular) return;
      const auto known = before.find(found.hex);
      if (known != before.end()) {
        shard.portable.insert(before.extract(known));
      } else if (const auto key = read_key(disk_, found, &unread);
                 key && key->portable_fields != 0) {
        shard.portable.emplace(found.hex, key->portable);
        changed = true;
      }
    });
    if (!listed && is_there) shard.portable.swap(before);  // not readable just now
    changed |= !before.empty();
    shard.settled_ns = 0;
    if (!listed || unread) continue;
    const std::int64_t stamp_ns = listed->modified_ns;
    if (stamp_ns != shard.listed_ns) {
      shard.listed_ns = stamp_ns;
      shard.listed_at = Clock::now();
    }
    // No other clock but the file server's says how old its stamps are. Where it cannot be asked,
    // it has gone on as long as this machine since the stamp was seen.
    if ((now_ns && stamp_ns < *now_ns - std::chrono::nanoseconds(kCoarse).count()) ||
        started - shard.listed_at > kCoarse)
      shard.settled_ns = stamp_ns;
  }
  if (!changed) return false;
  index.names.clear();
  for (const Shard& shard : index.shards)
    for (const auto& [hex, portable] : shard.portable) index.names[portable].push_back(hex);
  return true;
}

}  // namespace kiln::cache
