// Part of kiln/hopper.cuh, on every target: tensor maps as kernels take them.
#pragma once

namespace kiln::hopper {

/// What cuTensorMapEncodeTiled makes: opaque. A kernel takes it as `const __grid_constant__`.
struct alignas(128) TensorMap {
  unsigned long long words[16];
};

namespace detail {
template <bool is_map, class Pointer>
struct ArgumentOf {
  using Type = TensorMap;
};
template <class Pointer>
struct ArgumentOf<false, Pointer> {
  using Type = Pointer;
};
}  // namespace detail

/// A kernel's parameter for an array, the map or the plain pointer:
///   const __grid_constant__ Argument<c.tma(), const T*> a
template <bool is_map, class Pointer>
using Argument = typename detail::ArgumentOf<is_map, Pointer>::Type;

/// How long the L2 cache is to keep what a copy moves: as it sees fit, briefly (read once), or
/// long.
enum class Keep : unsigned long long {
  normally = 0,
  briefly = 0x12F0000000000000,
  longer = 0x14F0000000000000
};

}  // namespace kiln::hopper
