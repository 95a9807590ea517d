// Rotary position embeddings on real hardware as engines launch them: in place on slices of one
// array, with padded tokens, and with positions and slots that lie nowhere.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kiln/kernels/rope.hpp"
#include "kiln/runtime.hpp"
#include "kiln_test.hpp"

using namespace kiln::templates;

namespace {

template <class T>
std::vector<T> drawn(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> pick(-2, 2);
  std::vector<T> values(count);
  for (T& value : values) value = T(pick(random));
  return values;
}

template <class T>
std::size_t wrong(const std::vector<T>& got, const std::vector<T>& want, kiln::Tolerance near) {
  std::size_t count = got.size() == want.size() ? 0 : 1;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double a = static_cast<float>(got[i]), b = static_cast<float>(want[i]);
    count += std::isnan(b) ? !std::isnan(a)
                           : !(std::abs(a - b) <= near.absolute + near.relative * std::abs(b));
  }
  return count;
}

kiln::Runtime untuned() {
  kiln::RuntimeOptions options;
  options.device = "cuda";
  options.store.disk = false;
  options.mode = kiln::Mode::untuned;
  return kiln::Runtime(options);
}

constexpr int kTokens = 37, kQ = 6, kKv = 2, kMaxPosition = 100, kBlocks = 7, kBlock = 8;

/// Places of all tokens, some of which are out of range.
std::vector<std::int64_t> strewn(int below) {
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> values;
  for (std::int64_t t = 0; t < kTokens; ++t) values.push_back((t * 11 + 5) % below);
  values[3] = -1;
  values[9] = below;
  values[10] = kFar;
  values[36] = -kFar;
  return values;
}

template <class T>
void check_in_place(RopeOrder order, int width, int rotary, int gap) {
  CAPTURE(width, rotary, gap);
  const kiln::Runtime runtime = untuned();
  const auto kernel = rope_norm_paged_kernel<T>(order);
  const auto plain = rope_kernel<T>(order);
  const RopeStride row = (kQ + 2 * kKv) * width + gap, block = kBlock * kKv * width + gap;
  auto qkv = drawn<T>(static_cast<std::size_t>(kTokens * row), 1);
  auto k_cache = drawn<T>(static_cast<std::size_t>(kBlocks * block), 2), v_cache = k_cache;
  // The row behind the last position's is not NaN.
  const auto table = drawn<float>(static_cast<std::size_t>((kMaxPosition + 1) * rotary), 3);
  const auto weight = drawn<T>(static_cast<std::size_t>(width), 4);
  const auto positions = strewn(kMaxPosition), slots = strewn(kBlocks * kBlock);
  auto device_qkv = runtime.array(qkv), device_k = runtime.array(k_cache),
       device_v = runtime.array(v_cache);
  const auto device_table = runtime.array(table);
  const auto device_weight = runtime.array(weight);
  const auto device_positions = runtime.array(positions), device_slots = runtime.array(slots);

  const auto run = [&](const auto& rope, T* q, T* k_to, T* v_to, const float* angles,
                       const std::int64_t* at, const std::int64_t* to, const T* w) {
    T* const k = q + kQ * width;
    rope(q, k_to, v_to, static_cast<const T*>(q), static_cast<const T*>(k),
         static_cast<const T*>(k + kKv * width), angles, at, to, kTokens, kQ, kKv, width, rotary,
         kMaxPosition, kBlocks, kBlock, block, row, row, row, row, w, w, 1e-5f);
  };
  const auto rotate = [&](const auto& rope, T* q, const float* angles, const std::int64_t* at) {
    T* const k = q + kQ * width;
    rope(q, k, static_cast<const T*>(q), static_cast<const T*>(k), angles, at, kTokens, kQ, kKv,
         width, rotary, kMaxPosition, row, row, row, row);
  };
  const auto tuned = runtime.tuned(kernel);
  const auto tuned_plain = runtime.tuned(plain);
  run([&](auto... arguments) { tuned({}, arguments...); }, device_qkv.data(), device_k.data(),
      device_v.data(), device_table.data(), device_positions.data(), device_slots.data(),
      device_weight.data());
  run(kernel.reference, qkv.data(), k_cache.data(), v_cache.data(), table.data(), positions.data(),
      slots.data(), weight.data());
  CHECK(wrong(device_qkv.download(), qkv, kernel.tolerance) == 0);
  CHECK(wrong(device_k.download(), k_cache, kernel.tolerance) == 0);
  CHECK(wrong(device_v.download(), v_cache, {.relative = 0, .absolute = 0}) == 0);
  // Each from the same elements.
  device_qkv.upload(qkv);
  rotate([&](auto... arguments) { tuned_plain({}, arguments...); }, device_qkv.data(),
         device_table.data(), device_positions.data());
  rotate(plain.reference, qkv.data(), table.data(), positions.data());
  CHECK(wrong(device_qkv.download(), qkv, plain.tolerance) == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("rope in place on slices of one array, and to a cache", "[gpu][templates]",
                   float, kiln::float16, kiln::bfloat16) {
  for (const RopeOrder order : {RopeOrder::halved, RopeOrder::interleaved}) {
    check_in_place<TestType>(order, 128, 128, 0);
    check_in_place<TestType>(order, 96, 32, 8);
    check_in_place<TestType>(order, 37, 12, 3);
  }
}
