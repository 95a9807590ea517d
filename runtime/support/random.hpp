// Random numbers: of a seed, the same with every standard library, so that a seed names a search
// for good; and such as nobody else has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace kiln::runtime {

/// From the system: another number in each process, and at each call.
inline std::uint64_t unpredictable_bits() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

/// Not thread-safe.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t bits() { return engine_(); }
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }
  /// Uniform in [0, count); count > 0.
  std::size_t below(std::size_t count) {
    return static_cast<std::size_t>((static_cast<unsigned __int128>(engine_()) * count) >> 64);
  }
  bool chance(double probability) { return uniform() < probability; }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace kiln::runtime
