#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kiln_test.hpp"
#include "runtime/device/guarded_memory.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

constexpr std::size_t kGuard = 8192;

struct Guarded {
  test::Bench bench;
  GuardedMemory memory;

  explicit Guarded(std::size_t bytes, GuardPattern pattern = GuardPattern::bytes)
      : memory(bench.device, bytes, kGuard, pattern) {}
  unsigned char* data() { return static_cast<unsigned char*>(memory.data()); }
};

}  // namespace

TEST_CASE("what is written outside is found, whatever is written inside", "[runtime][guards]") {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{7}, std::size_t{4096},
                                  (std::size_t{2} << 20) - 1, std::size_t{2} << 20}) {
    CAPTURE(bytes);
    Guarded g(bytes);
    std::memset(g.data(), 0, bytes);
    CHECK_FALSE(g.memory.breach());
    const auto end = static_cast<std::ptrdiff_t>(bytes);
    for (const std::ptrdiff_t at : {std::ptrdiff_t{-1}, std::ptrdiff_t{-4}, std::ptrdiff_t{-8192},
                                    end, end + 3, end + 8191}) {
      g.data()[at] = 0;
      CHECK(g.memory.breach() == at);
      g.memory.repair();
      CHECK_FALSE(g.memory.breach());
    }
    // Nearest to the array; what is before it is told first.
    g.data()[end + 5] = g.data()[end + 2] = 0;
    CHECK(g.memory.breach() == end + 2);
    g.data()[-9] = g.data()[-3] = 0;
    CHECK(g.memory.breach() == -3);
    g.memory.repair();
    CHECK_FALSE(g.memory.breach());
  }
}

TEST_CASE("a byte that is moved by one is not taken for what was there", "[runtime][guards]") {
  Guarded g(16);
  std::memmove(g.data() + 16, g.data() + 17, 100);
  CHECK(g.memory.breach());
}

TEST_CASE("no value that arrays often hold is the pattern", "[runtime][guards]") {
  const auto pattern = guard_pattern(GuardPattern::bytes);
  const auto [low, high] = std::minmax_element(pattern.begin(), pattern.end());
  CHECK(std::to_integer<int>(*low) > 0x90);
  CHECK(std::to_integer<int>(*high) < 0xff);
}

TEST_CASE("a number that is read outside is a NaN, of whatever type", "[runtime][guards]") {
  Guarded g(64, GuardPattern::nan);
  for (const std::size_t offset : {std::size_t{64}, std::size_t{64 + 512}}) {
    double wide;
    std::memcpy(&wide, g.data() + offset, sizeof wide);
    CHECK(std::isnan(wide));
    for (int i = 0; i < 2; ++i) {
      float value;
      std::memcpy(&value, g.data() + offset + 4 * i, sizeof value);
      CHECK(std::isnan(value));
    }
    for (int i = 0; i < 4; ++i) {
      float16 half;
      bfloat16 brain;
      std::memcpy(&half, g.data() + offset + 2 * i, sizeof half);
      std::memcpy(&brain, g.data() + offset + 2 * i, sizeof brain);
      CHECK(std::isnan(static_cast<float>(half)));
      CHECK(std::isnan(static_cast<float>(brain)));
    }
  }
  float before;
  std::memcpy(&before, g.data() - 4, sizeof before);
  CHECK(std::isnan(before));
  // The NaN that kernels write is another.
  const float nan = std::nanf("");
  std::memcpy(g.data() + 64, &nan, sizeof nan);
  CHECK(g.memory.breach());
}

TEST_CASE("of nothing, nothing is made", "[runtime][guards]") {
  Guarded g(0);
  CHECK(g.memory.data() == nullptr);
  CHECK(g.bench.device->live_allocations == 0);
  CHECK_FALSE(g.memory.breach());
  g.memory.repair();
  GuardedMemory none;
  CHECK_FALSE(none.breach());
}

TEST_CASE("memory goes back", "[runtime][guards]") {
  test::Bench bench;
  {
    GuardedMemory a(bench.device, 10, kGuard, GuardPattern::bytes);
    GuardedMemory b = std::move(a);
    CHECK(bench.device->live_allocations == 1);
    CHECK_FALSE(b.breach());
    b = {};
    CHECK(bench.device->live_allocations == 0);
  }
  CHECK(bench.device->live_allocations == 0);
}

TEST_CASE("the first byte that changed, over chunks and strides", "[runtime][guards]") {
  test::Bench bench;
  const auto pattern = guard_pattern(GuardPattern::bytes);
  struct Shape {
    std::size_t bytes, stride, copies;
  };
  for (const Shape s : {Shape{1, 1, 1}, Shape{3, 512, 5000}, Shape{100'000, 100'352, 40},
                        Shape{256 << 10, 256 << 10, 20}}) {
    CAPTURE(s.bytes, s.stride, s.copies);
    const auto want = pattern.first(s.bytes);
    std::vector<std::byte> memory(s.stride * s.copies, std::byte{7});
    for (std::size_t copy = 0; copy < s.copies; ++copy)
      std::copy(want.begin(), want.end(), memory.begin() + static_cast<long>(copy * s.stride));
    const auto change = [&] {
      return first_change(*bench.device, memory.data(), memory.size(), s.stride, want);
    };
    CHECK_FALSE(change());
    for (const std::size_t copy : {s.copies - 1, s.copies / 2, std::size_t{0}})
      for (const std::size_t byte : {s.bytes - 1, s.bytes / 2, std::size_t{0}}) {
        memory[copy * s.stride + byte] = std::byte{0};
        CHECK(change() == copy * s.stride + byte);
      }
    if (s.stride > s.bytes && s.copies > 1) {
      std::copy(want.begin(), want.end(), memory.begin());
      memory[s.bytes] = std::byte{0};  // between the copies
      CHECK(change() != s.bytes);
    }
  }
}
