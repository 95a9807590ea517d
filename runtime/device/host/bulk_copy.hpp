// Copies of boxes and of runs of bytes between arrays and the shared memory of blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "codegen/host_abi.hpp"
#include "kiln/detail/host_tensor_map.hpp"

namespace kiln::runtime {

/// Bytes of shared memory that a box takes.
std::uint64_t box_bytes(const detail::HostTensorMap& map);

/// Why the map cannot be used, as the end of a sentence that begins with its name; empty: it can.
std::string unusable(const detail::HostTensorMap& map);

/// Why a box of the map cannot be copied at `at`, as the end of a sentence that begins with "a
/// box"; empty: it can. The rules are those of kiln/hopper/copy.cuh.
std::string misplaced(const detail::HostTensorMap& map, const std::int32_t (&at)[5], bool store);

/// Copies the box at `at` to `shared + place`. Elements outside the array become zero, or NaN.
/// Swizzles by the place in the block's shared memory.
void load_box(const detail::HostTensorMap& map, const std::int32_t (&at)[5], std::byte* shared,
              std::uint64_t place);
/// Copies from `shared + place` to the array, or combines with what is there. Elements outside the
/// array are left out. False: elements of the map's type cannot be combined so.
bool store_box(const detail::HostTensorMap& map, const std::int32_t (&at)[5],
               const std::byte* shared, std::uint64_t place, codegen::HostBulkKind kind);
/// The same for `bytes` bytes side by side.
bool store_bytes(void* to, const void* from, std::uint64_t bytes, detail::HostElement element,
                 codegen::HostBulkKind kind);

}  // namespace kiln::runtime
