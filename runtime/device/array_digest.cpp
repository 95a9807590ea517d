#include "runtime/device/array_digest.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "runtime/support/parallel.hpp"

namespace kiln::runtime {

namespace {

std::uint64_t sum_of_words(std::span<const std::byte> bytes, std::size_t first, std::size_t end) {
  std::uint64_t sum = 0;
  for (std::size_t i = first; i < end; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + 8 * i, std::min<std::size_t>(8, bytes.size() - 8 * i));
    word ^= (i + 1) * 0xD1342543DE82EF95;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
    sum += word ^ (word >> 31);
  }
  return sum;
}

}  // namespace

std::uint64_t array_digest(std::span<const std::byte> bytes) {
  std::atomic<std::uint64_t> sum{0};
  for_each_block((bytes.size() + 7) / 8, [&](std::size_t begin, std::size_t end) {
    sum += sum_of_words(bytes, begin, end);
  });
  return sum;
}

}  // namespace kiln::runtime
