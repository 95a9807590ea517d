// A digest of an array's contents that a device and the host compute alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kiln::runtime {

/// The sum over all 8-byte words, the last one filled up with zeros, of the word and a multiple of
/// its index, mixed as splitmix64 ends (https://prng.di.unimi.it/splitmix64.c), modulo 2^64. A sum:
/// the order of adding does not matter. Uses all cores for large arrays.
std::uint64_t array_digest(std::span<const std::byte> bytes);

}  // namespace kiln::runtime
