#include "cache/memory_level.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace kiln::cache {

std::optional<detail::Bytes> MemoryLevel::find(const Digest& digest) const {
  std::shared_lock lock(mutex_);
  const auto slot = slots_.find(digest);
  if (slot == slots_.end()) return std::nullopt;
  slot->second.used.store(clock_.fetch_add(1, std::memory_order_relaxed),
                          std::memory_order_relaxed);
  return slot->second.bytes;
}

void MemoryLevel::drop(const Digest& digest) {
  const auto slot = slots_.find(digest);
  if (slot == slots_.end()) return;
  size_ -= slot->second.bytes.size();
  slots_.erase(slot);
}

void MemoryLevel::put(const Key& key, detail::Bytes bytes) {
  std::unique_lock lock(mutex_);
  drop(key.digest);
  if (bytes.size() > capacity_) return;
  while (size_ + bytes.size() > capacity_) {
    const auto oldest = std::min_element(slots_.begin(), slots_.end(), [](auto& a, auto& b) {
      return a.second.used.load(std::memory_order_relaxed) <
             b.second.used.load(std::memory_order_relaxed);
    });
    drop(Digest(oldest->first));
  }
  size_ += bytes.size();
  slots_.try_emplace(key.digest, key, std::move(bytes), clock_.fetch_add(1));
}

void MemoryLevel::erase(const Digest& digest) {
  std::unique_lock lock(mutex_);
  drop(digest);
}

void MemoryLevel::clear() {
  std::unique_lock lock(mutex_);
  slots_.clear();
  size_ = 0;
}

std::vector<MemoryLevel::Item> MemoryLevel::find_portable(const Digest& portable) const {
  std::vector<Item> found;
  {
    std::shared_lock lock(mutex_);
    for (const auto& [digest, slot] : slots_)
      if (slot.key.portable == portable) found.emplace_back(slot.key, slot.bytes);
  }
  std::ranges::sort(found, {}, [](const Item& item) { return item.first.digest; });
  return found;
}

std::vector<MemoryLevel::Item> MemoryLevel::snapshot() const {
  std::vector<Item> result;
  std::shared_lock lock(mutex_);
  for (const auto& [digest, slot] : slots_) result.emplace_back(slot.key, slot.bytes);
  return result;
}

}  // namespace kiln::cache
