// Immutable bytes with a shared owner: a compiler's output, an entry read from disk, a part of a
// mapped bundle. No public header includes this.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kiln::detail {

/// Cheap to copy; copies share the bytes. Safe to read from any number of threads.
class Bytes {
 public:
  Bytes() = default;
  Bytes(std::vector<std::byte> bytes) {  // NOLINT: a vector is such bytes
    auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    view_ = *owner;
    owner_ = std::move(owner);
  }
  /// `view` stays valid as long as `owner` lives.
  Bytes(std::shared_ptr<const void> owner, std::span<const std::byte> view)
      : owner_(std::move(owner)), view_(view) {}

  const std::byte* data() const noexcept { return view_.data(); }
  std::size_t size() const noexcept { return view_.size(); }
  bool empty() const noexcept { return view_.empty(); }
  auto begin() const noexcept { return view_.begin(); }
  auto end() const noexcept { return view_.end(); }
  std::span<const std::byte> view() const noexcept { return view_; }
  operator std::span<const std::byte>() const noexcept { return view_; }  // NOLINT

  /// The same bytes, wherever they are.
  bool operator==(const Bytes& other) const noexcept {
    return std::ranges::equal(view_, other.view_);
  }

  /// A part that keeps the whole alive. `offset + size` must not exceed size().
  Bytes part(std::size_t offset, std::size_t size) const {
    return {owner_, view_.subspan(offset, size)};
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> view_;
};

}  // namespace kiln::detail
