#include "runtime/device/array_digest.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "runtime/support/machine.hpp"
#include "runtime/support/parallel.hpp"

namespace kiln::runtime {

namespace {

/// Words that one thread adds up at once.
constexpr std::size_t kBlock = std::size_t{1} << 18;

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
  const std::size_t words = (bytes.size() + 7) / 8, blocks = (words + kBlock - 1) / kBlock;
  if (blocks <= 1) return sum_of_words(bytes, 0, words);
  std::atomic<std::uint64_t> sum{0};
  for_each_index(usable_cores(), blocks, {},
                 [&](std::size_t block) {
                   sum +=
                       sum_of_words(bytes, block * kBlock, std::min(words, (block + 1) * kBlock));
                 },
                 {});
  return sum;
}

}  // namespace kiln::runtime
