// The part of a warpgroup's matrix product that one of its threads holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "codegen/host_abi.hpp"

namespace kiln::runtime {

/// Computes the values of D that `thread` of the block holds, summed as floats in the order of k.
/// Returns an empty text, or what the descriptors get wrong about the `bytes` bytes at `shared`.
std::string multiply(const codegen::HostWarpgroupMma& product, std::uint32_t thread,
                     const std::byte* shared, std::uint64_t bytes);

}  // namespace kiln::runtime
