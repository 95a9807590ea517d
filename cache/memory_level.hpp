// The level above the disk: payloads kept in memory, up to a bound, the least recently used going
// first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kiln/detail/bytes.hpp"
#include "kiln/key.hpp"

namespace kiln::cache {

/// Safe from any number of threads; finders do not wait for each other.
class MemoryLevel {
 public:
  using Item = std::pair<Key, detail::Bytes>;

  /// `capacity`: the bytes of payload that are kept. A payload larger than that is not kept.
  explicit MemoryLevel(std::size_t capacity) : capacity_(capacity) {}

  std::optional<detail::Bytes> find(const Digest& digest) const;
  /// Everything of this Key::portable, by digest.
  std::vector<Item> find_portable(const Digest& portable) const;
  void put(const Key& key, detail::Bytes bytes);
  void erase(const Digest& digest);
  void clear();
  /// A consistent copy of what is here, in no particular order.
  std::vector<Item> snapshot() const;

 private:
  struct Slot {
    Key key;
    detail::Bytes bytes;
    mutable std::atomic<std::uint64_t> used;  // finders hold the lock shared
    Slot(Key k, detail::Bytes b, std::uint64_t u)
        : key(std::move(k)), bytes(std::move(b)), used(u) {}
  };
  struct Hash {
    std::size_t operator()(const Digest& digest) const noexcept {
      std::size_t hash;  // any part of a SHA-256 is a hash
      std::memcpy(&hash, digest.data(), sizeof hash);
      return hash;
    }
  };

  void drop(const Digest& digest);

  const std::size_t capacity_;
  mutable std::shared_mutex mutex_;
  mutable std::atomic<std::uint64_t> clock_{0};
  std::size_t size_ = 0;
  std::unordered_map<Digest, Slot, Hash> slots_;
};

}  // namespace kiln::cache
