// Bytes of the binary formats: unsigned little-endian integers, digests, length-prefixed texts.
// Reading trusts nothing: what is not there reads as zero, and is remembered.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kiln/key.hpp"

namespace kiln::cache {

/// Appends to a buffer.
class WireWriter {
 public:
  explicit WireWriter(std::vector<std::byte>& out) : out_(out) {}

  template <std::unsigned_integral T>
  WireWriter& put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      out_.push_back(static_cast<std::byte>(value >> (8 * i)));
    return *this;
  }
  WireWriter& put(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  /// A u32 length and the bytes. `text` must be shorter than 4 GiB.
  WireWriter& put_sized(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    return put(std::as_bytes(std::span(text)));
  }

 private:
  std::vector<std::byte>& out_;
};

/// Takes from the front. After a read past the end everything reads as zero or empty, and ok() is
/// false. Allocates nothing.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  T take() {
    T value = 0;
    const auto bytes = take_bytes(sizeof(T));
    for (std::size_t i = 0; i < bytes.size(); ++i)
      value = static_cast<T>(value | static_cast<T>(std::to_integer<T>(bytes[i]) << (8 * i)));
    return value;
  }
  template <std::size_t N>
  std::array<std::byte, N> take_array() {
    std::array<std::byte, N> array{};
    std::ranges::copy(take_bytes(N), array.begin());
    return array;
  }
  std::string_view take_sized() {
    const auto bytes = take_bytes(take<std::uint32_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  bool ok() const { return ok_; }
  std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> take_bytes(std::size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace kiln::cache
