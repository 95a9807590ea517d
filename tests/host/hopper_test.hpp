// What tests of kiln/hopper.cuh on the host need: tensor maps, bf16, places in swizzled tiles.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "host_test.hpp"
#include "kiln/detail/host_tensor_map.hpp"

namespace host_test {

using kiln::detail::HostElement;
using kiln::detail::HostTensorMap;

inline constexpr const char* kHopperHead = R"(
  #include <cuda_bf16.h>
  #include <cuda_fp16.h>
  #include <kiln/hopper.cuh>
  namespace hopper = kiln::hopper;
)";

/// A map of a dense array; sizes and box count from the innermost dimension.
inline HostTensorMap tensor_map(const void* array, HostElement element,
                                const std::vector<std::uint64_t>& size,
                                const std::vector<unsigned>& box, unsigned swizzle = 0) {
  HostTensorMap map;
  map.element = element;
  map.rank = static_cast<std::uint8_t>(size.size());
  map.swizzle = static_cast<std::uint8_t>(swizzle);
  map.address = reinterpret_cast<std::uint64_t>(array);
  std::uint64_t stride = bytes_of(element);
  for (std::size_t d = 0; d < size.size(); ++d) {
    map.size[d] = size[d];
    map.box[d] = static_cast<std::uint16_t>(box[d]);
    stride *= size[d];
    if (d < 4) map.stride[d] = stride;
  }
  return map;
}

inline std::uint16_t bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float from_bf16(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Eighths from -4 to 4: sums of products are exact.
inline std::vector<std::uint16_t> random_bf16(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint16_t> values(n);
  for (std::uint16_t& value : values)
    value = bf16(static_cast<float>(static_cast<int>(random() % 65) - 32) / 8.0f);
  return values;
}

/// Where 16-byte unit `unit` of row `row` lies in a tile of rows of `span` bytes: units of a row
/// change places with those whose number differs in as many bits as its number has.
inline std::size_t unit_place(std::size_t row, std::size_t unit, std::size_t span) {
  const std::size_t line = row * span / 128;  // of 128 bytes, over which the pattern goes
  const std::size_t units = span / 16;
  return row * span + (unit ^ (line % units)) * 16;
}

/// The words of the error that `run` ends with; empty: it does not.
template <class Run>
std::string words_of(Run run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace host_test
