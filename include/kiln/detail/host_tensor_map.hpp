// What a tensor map is on the host device: an array in memory and the box that one copy moves.
//
// As large as a CUtensorMap, and passed as one: by value, as a `__grid_constant__` parameter.
#pragma once

#include <cstdint>

namespace kiln::detail {

/// Types of elements, with the numbers of CUtensorMapDataType.
enum class HostElement : std::uint8_t {
  u8 = 0,
  u16 = 1,
  u32 = 2,
  s32 = 3,
  u64 = 4,
  s64 = 5,
  f16 = 6,
  f32 = 7,
  f64 = 8,
  bf16 = 9,
};

constexpr unsigned bytes_of(HostElement element) {
  switch (element) {
    case HostElement::u8:
      return 1;
    case HostElement::u16:
    case HostElement::f16:
    case HostElement::bf16:
      return 2;
    case HostElement::u32:
    case HostElement::s32:
    case HostElement::f32:
      return 4;
    case HostElement::u64:
    case HostElement::s64:
    case HostElement::f64:
      return 8;
  }
  return 0;
}

/// Dimensions are counted from the innermost one, whose elements lie side by side.
struct alignas(64) HostTensorMap {
  static constexpr std::uint32_t kMark = 0x4b544d31;

  std::uint32_t mark = kMark;  ///< anything else is not a tensor map
  HostElement element = HostElement::f32;
  std::uint8_t rank = 1;           ///< 1 to 5
  std::uint8_t swizzle = 0;        ///< bytes: 0, 32, 64 or 128
  std::uint8_t fill_with_nan = 0;  ///< 1: floating-point elements outside the array are NaN, not 0
  std::uint64_t address = 0;
  std::uint64_t size[5] = {1, 1, 1, 1, 1};     ///< elements
  std::uint64_t stride[4] = {0, 0, 0, 0};      ///< bytes, of dimensions 1 to 4
  std::uint16_t box[5] = {1, 1, 1, 1, 1};      ///< elements, at most 256
  std::uint8_t traverse[5] = {1, 1, 1, 1, 1};  ///< of a box: the step from one element to the next
};
static_assert(sizeof(HostTensorMap) == 128);

/// Where a byte of shared memory lies that has the place `at` without swizzle: bits 4 to 6 of the
/// address change with bits 7 to 9, as many of them as the swizzle has.
constexpr std::uint64_t swizzled(std::uint64_t at, unsigned swizzle) {
  const std::uint64_t pattern = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
  return at ^ ((at >> 7 & pattern) << 4);
}

}  // namespace kiln::detail
