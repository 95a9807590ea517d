#include "cache/key_index.hpp"

#include <cstring>
#include <ctime>
#include <utility>

#include "cache/entry_file.hpp"

namespace kiln::cache {
namespace {

/// Time stamps may be as coarse as this; a directory that changed within it may change again and
/// keep its stamp.
constexpr std::int64_t kCoarseNs = 3'000'000'000;

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
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
  bool changed = false;
  for (unsigned number = 0; number < DiskLevel::kShards; ++number) {
    Shard& shard = index.shards[number];
    const auto stamp = disk_.shard_stamp(kind, number);
    if (stamp ? stamp->modified_ns == shard.settled_ns : shard.portable.empty()) continue;
    std::map<std::string, Digest> before = std::exchange(shard.portable, {});
    const auto listed = disk_.walk_shard(kind, number, [&](const DiskLevel::Found& found) {
      if (found.what != DiskLevel::Found::What::entry || !found.regular) return;
      const auto known = before.find(found.hex);
      if (known != before.end()) {
        shard.portable.insert(before.extract(known));
      } else if (const auto key = read_key(disk_, kind, found.hex);
                 key && key->portable_fields != 0) {
        shard.portable.emplace(found.hex, key->portable);
        changed = true;
      }
    });
    if (!listed && stamp) shard.portable.swap(before);  // not readable just now
    changed |= !before.empty();
    shard.settled_ns =
        listed && listed->modified_ns < now_ns() - kCoarseNs ? listed->modified_ns : 0;
  }
  index.built = true;
  if (!changed) return false;
  index.names.clear();
  for (const Shard& shard : index.shards)
    for (const auto& [hex, portable] : shard.portable) index.names[portable].push_back(hex);
  return true;
}

}  // namespace kiln::cache
