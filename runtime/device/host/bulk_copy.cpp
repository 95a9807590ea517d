#include "runtime/device/host/bulk_copy.hpp"

#include <algorithm>
#include <cstring>

#include "kiln/detail/format.hpp"
#include "runtime/device/host/small_float.hpp"

namespace kiln::runtime {
namespace {

using codegen::HostBulkKind;
using detail::HostElement;
using detail::HostTensorMap;

template <class T, class Combine>
void combine_as(void* to, const void* from, Combine combine) {
  T a, b;
  std::memcpy(&a, to, sizeof(T));
  std::memcpy(&b, from, sizeof(T));
  a = static_cast<T>(combine(a, b));
  std::memcpy(to, &a, sizeof(T));
}

template <class Combine>
bool combine_one(void* to, const void* from, HostElement element, Combine combine) {
  switch (element) {
    case HostElement::u32:
      combine_as<std::uint32_t>(to, from, combine);
      return true;
    case HostElement::s32:
      combine_as<std::int32_t>(to, from, combine);
      return true;
    case HostElement::u64:
      combine_as<std::uint64_t>(to, from, combine);
      return true;
    case HostElement::s64:
      combine_as<std::int64_t>(to, from, combine);
      return true;
    case HostElement::f32:
      combine_as<float>(to, from, combine);
      return true;
    case HostElement::f16:
      combine_as<std::uint16_t>(to, from, [&](std::uint16_t a, std::uint16_t b) {
        return float_to_f16(combine(f16_to_float(a), f16_to_float(b)));
      });
      return true;
    case HostElement::bf16:
      combine_as<std::uint16_t>(to, from, [&](std::uint16_t a, std::uint16_t b) {
        return float_to_bf16(combine(bf16_to_float(a), bf16_to_float(b)));
      });
      return true;
    default:
      return false;
  }
}

struct Add {
  // Sums of integers wrap.
  std::int32_t operator()(std::int32_t a, std::int32_t b) const {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
  std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};

bool put(void* to, const void* from, HostElement element, HostBulkKind kind) {
  switch (kind) {
    case HostBulkKind::add:
      return combine_one(to, from, element, Add{});
    case HostBulkKind::minimum:
      return element != HostElement::f32 &&
             combine_one(to, from, element, [](auto a, auto b) { return b < a ? b : a; });
    case HostBulkKind::maximum:
      return element != HostElement::f32 &&
             combine_one(to, from, element, [](auto a, auto b) { return a < b ? b : a; });
    default:
      std::memcpy(to, from, bytes_of(element));
      return true;
  }
}

bool is_floating(HostElement element) {
  return element == HostElement::f16 || element == HostElement::bf16 ||
         element == HostElement::f32 || element == HostElement::f64;
}

// Calls visit(element of the array or null where it is outside, place in shared memory) for each
// element of the box, in the order of shared memory.
template <class Visit>
void for_box(const HostTensorMap& map, const std::int32_t (&at)[5], std::uint64_t place,
             Visit visit) {
  const unsigned bytes = bytes_of(map.element);
  auto* const array = reinterpret_cast<std::byte*>(map.address);
  std::uint64_t row = place;
  std::uint32_t index[5] = {};
  for (;;) {
    bool inside = true;
    std::byte* start = array;
    for (unsigned d = 1; d < map.rank; ++d) {
      const std::int64_t coordinate =
          std::int64_t{at[d]} + std::int64_t{index[d]} * map.traverse[d];
      inside = inside && coordinate >= 0 && static_cast<std::uint64_t>(coordinate) < map.size[d];
      if (inside) start += static_cast<std::uint64_t>(coordinate) * map.stride[d - 1];
    }
    for (std::uint32_t i = 0; i < map.box[0]; ++i) {
      const std::int64_t coordinate = std::int64_t{at[0]} + std::int64_t{i} * map.traverse[0];
      const bool here =
          inside && coordinate >= 0 && static_cast<std::uint64_t>(coordinate) < map.size[0];
      visit(here ? start + coordinate * bytes : nullptr,
            detail::swizzled(row + std::uint64_t{i} * bytes, map.swizzle));
    }
    row += std::uint64_t{map.box[0]} * bytes;
    unsigned d = 1;
    for (; d < map.rank && ++index[d] == map.box[d]; ++d) index[d] = 0;
    if (d >= map.rank) return;
  }
}

}  // namespace

std::uint64_t box_bytes(const HostTensorMap& map) {
  std::uint64_t bytes = bytes_of(map.element);
  for (unsigned d = 0; d < map.rank; ++d) bytes *= map.box[d];
  return bytes;
}

std::string unusable(const HostTensorMap& map) {
  if (map.mark != HostTensorMap::kMark) return "is none: was it encoded for the host device?";
  if (map.rank < 1 || map.rank > 5) return detail::format("has {} dimensions", int{map.rank});
  if (bytes_of(map.element) == 0) return "has elements of an unknown type";
  if (map.swizzle != 0 && map.swizzle != 32 && map.swizzle != 64 && map.swizzle != 128)
    return detail::format("has a swizzle of {} bytes", int{map.swizzle});
  const unsigned row = map.box[0] * bytes_of(map.element);
  if (row % 16 != 0)
    return detail::format("has boxes of {} bytes per row, not a multiple of 16", row);
  if (map.swizzle != 0 && row > map.swizzle)
    return detail::format("has boxes of {} bytes per row, more than its swizzle of {} bytes", row,
                          int{map.swizzle});
  for (unsigned d = 0; d < map.rank; ++d)
    if (map.box[d] == 0 || map.box[d] > 256 || map.traverse[d] == 0)
      return detail::format("has boxes of {} elements in dimension {}", int{map.box[d]}, d);
  return {};
}

std::string misplaced(const HostTensorMap& map, const std::int32_t (&at)[5], bool store) {
  constexpr int kPiece = 16;
  const std::int64_t bytes = bytes_of(map.element);
  if (at[0] * bytes % kPiece != 0)
    return detail::format("begins at byte {} of a row, not a multiple of {}", at[0] * bytes,
                          kPiece);
  if (!store) return {};
  if (at[0] < 0) return detail::format("is stored from element {} of a row on", at[0]);
  const auto row = static_cast<std::int64_t>(map.size[0]) * bytes;
  const std::int64_t end = (at[0] + std::int64_t{map.box[0]}) * bytes;
  if (row % kPiece != 0 && end > row)
    return detail::format("is stored to the end of rows of {} bytes, not a multiple of {}", row,
                          kPiece);
  return {};
}

void load_box(const HostTensorMap& map, const std::int32_t (&at)[5], std::byte* shared,
              std::uint64_t place) {
  const unsigned bytes = bytes_of(map.element);
  const int outside = map.fill_with_nan && is_floating(map.element) ? 0xff : 0;
  for_box(map, at, place, [&](const std::byte* element, std::uint64_t to) {
    if (element)
      std::memcpy(shared + to, element, bytes);
    else
      std::memset(shared + to, outside, bytes);
  });
}

bool store_box(const HostTensorMap& map, const std::int32_t (&at)[5], const std::byte* shared,
               std::uint64_t place, HostBulkKind kind) {
  bool known = true;
  for_box(map, at, place, [&](std::byte* element, std::uint64_t from) {
    if (element) known = put(element, shared + from, map.element, kind) && known;
  });
  return known;
}

bool store_bytes(void* to, const void* from, std::uint64_t bytes, HostElement element,
                 HostBulkKind kind) {
  if (kind == HostBulkKind::store) {
    std::memcpy(to, from, bytes);
    return true;
  }
  const unsigned size = bytes_of(element);
  if (size == 0 || bytes % size != 0) return false;
  for (std::uint64_t i = 0; i < bytes; i += size)
    if (!put(static_cast<std::byte*>(to) + i, static_cast<const std::byte*>(from) + i, element,
             kind))
      return false;
  return true;
}

}  // namespace kiln::runtime
