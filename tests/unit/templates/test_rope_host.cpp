// Rotary position embeddings on the host target: all kinds, sizes and ways, and what is out of
// range.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>
#include <tuple>

#include "kiln/runtime.hpp"
#include "row_test.hpp"

using namespace kiln::templates;
using template_test::Array;
using template_test::HostInstance;
using template_test::wrong_elements;

namespace {

/// `gap`: elements from a token to the next beyond its own, and between blocks of the cache.
struct RopeShape {
  int tokens, q_heads, kv_heads, head_dim, rotary_dim, gap;

  int q_row() const { return q_heads * head_dim; }
  int kv_row() const { return kv_heads * head_dim; }
  int stride() const { return q_row() + 2 * kv_row() + gap; }
  std::string describe() const {
    return std::to_string(tokens) + " x " + std::to_string(q_heads) + ", " +
           std::to_string(kv_heads) + " x " + std::to_string(head_dim) + ", " +
           std::to_string(rotary_dim) + " rotated, gap " + std::to_string(gap);
  }
};
const std::vector<RopeShape> kRopeShapes{
    {5, 4, 2, 64, 64, 0},  {9, 4, 4, 64, 48, 8}, {3, 3, 1, 128, 32, 8},   {7, 6, 1, 128, 128, 0},
    {2, 2, 2, 80, 80, 16}, {4, 1, 1, 96, 64, 3}, {3, 2, 1, 6, 4, 0},      {3, 1, 1, 7, 2, 1},
    {2, 3, 0, 32, 0, 0},   {2, 0, 2, 16, 16, 8}, {1, 1, 1, 1024, 1024, 0}};
constexpr int kBlockSize = 4, kMaxPosition = 50;

std::size_t size_of(int count) { return static_cast<std::size_t>(count); }

/// q, k and v as slices of one array, and all that a launch takes beside them.
template <class T, class Table, class Position>
struct RopeData {
  explicit RopeData(const RopeShape& shape)
      : s(shape),
        blocks(s.tokens / kBlockSize + 2),
        block_stride(kBlockSize * s.kv_row() + s.gap),
        qkv(size_of(s.tokens) * size_of(s.stride())),
        table(size_of(kMaxPosition + 1) * size_of(s.rotary_dim)),  // a row behind it is no NaN
        q_weight(size_of(s.head_dim)),
        k_weight(size_of(s.head_dim)) {
    qkv.reals(21);
    table.reals(22);
    q_weight.reals(23);
    k_weight.reals(24);
    for (int t = 0; t < s.tokens; ++t) {
      positions.push_back(static_cast<Position>((t * 17 + 3) % kMaxPosition));
      slots.push_back((t * 5 + 6) % (blocks * kBlockSize));
    }
  }
  T* q() { return qkv.data(); }
  T* k() { return q() + s.q_row(); }
  T* v() { return k() + s.kv_row(); }
  std::size_t cache() const { return size_of(blocks) * size_of(block_stride); }

  RopeShape s;
  int blocks, block_stride;
  Array<T> qkv;
  Array<Table> table;
  Array<T> q_weight, k_weight;
  std::vector<Position> positions;
  std::vector<std::int64_t> slots;
};

/// What a launch writes. Caches begin as something that must stay where nothing belongs.
template <class T>
struct RopeResult {
  template <class Data>
  explicit RopeResult(const Data& d)
      : q(size_of(d.s.tokens) * size_of(d.s.q_row() + d.s.gap)),
        k(size_of(d.s.tokens) * size_of(d.s.kv_row() + d.s.gap)),
        k_cache(d.cache()),
        v_cache(d.cache()) {
    k_cache.reals(25);
    v_cache.reals(26);
  }
  Array<T> q, k, k_cache, v_cache;
};

/// Launches a kernel, or calls its reference, with a tail for those that have a norm.
template <class T, bool norm, bool to_cache, class Data, class Run>
void with_arguments(Data& d, RopeResult<T>& to, bool in_place, Run run) {
  const RopeShape& s = d.s;
  const auto launch = [&](auto... tail) {
    const kiln::templates::RopeStride from = s.stride(), q_to = in_place ? from : s.q_row() + s.gap,
                                      k_to = in_place ? from : s.kv_row() + s.gap;
    T* const q_out = in_place ? d.q() : to.q.data();
    const auto* const table = d.table.data();
    if constexpr (to_cache)
      run(RopePagedProblem{s.tokens, s.q_heads, s.kv_heads, s.head_dim, s.rotary_dim, kBlockSize,
                           d.block_stride, q_to, from, from, from},
          q_out, to.k_cache.data(), to.v_cache.data(), static_cast<const T*>(d.q()),
          static_cast<const T*>(d.k()), static_cast<const T*>(d.v()), table,
          std::as_const(d.positions).data(), std::as_const(d.slots).data(), s.tokens, s.q_heads,
          s.kv_heads, s.head_dim, s.rotary_dim, kMaxPosition, d.blocks, kBlockSize,
          kiln::templates::RopeStride{d.block_stride}, q_to, from, from, from, tail...);
    else
      run(RopeProblem{s.tokens, s.q_heads, s.kv_heads, s.head_dim, s.rotary_dim, q_to, k_to, from,
                      from},
          q_out, in_place ? d.k() : to.k.data(), static_cast<const T*>(d.q()),
          static_cast<const T*>(d.k()), table, std::as_const(d.positions).data(), s.tokens,
          s.q_heads, s.kv_heads, s.head_dim, s.rotary_dim, kMaxPosition, q_to, k_to, from, from,
          tail...);
  };
  if constexpr (norm)
    launch(static_cast<const T*>(d.q_weight.data()), static_cast<const T*>(d.k_weight.data()),
           1e-5f);
  else
    launch();
}

template <class T, class Table, class Position, bool norm, bool to_cache>
auto kernel_of(RopeOrder order) {
  if constexpr (norm && to_cache)
    return rope_norm_paged_kernel<T, Table, Position>(order);
  else if constexpr (norm)
    return rope_norm_kernel<T, Table, Position>(order);
  else if constexpr (to_cache)
    return rope_paged_kernel<T, Table, Position>(order);
  else
    return rope_kernel<T, Table, Position>(order);
}

/// `change(data)` before both.
template <class T, class Table, class Position, bool norm, bool to_cache>
void check_rope(RopeOrder order, const RopeConfig& config, const std::vector<RopeShape>& shapes,
                auto change) {
  const auto kernel = kernel_of<T, Table, Position, norm, to_cache>(order);
  const HostInstance<std::remove_cv_t<decltype(kernel)>> rope(kernel, config);
  const auto reference = [&](const auto&, auto... arguments) { kernel.reference(arguments...); };
  for (const RopeShape& shape : shapes)
    for (const bool in_place : {false, true}) {
      INFO(kernel.name << " " << shape.describe() << ", in place " << in_place << ", block "
                       << config.block << ", vector " << config.vector << ", pairs " << config.pairs
                       << ", heads " << config.heads << ", stages " << config.stages);
      RopeData<T, Table, Position> data(shape), wanted(shape);
      change(data);
      change(wanted);
      RopeResult<T> got(data), want(data);
      with_arguments<T, norm, to_cache>(data, got, in_place, rope);
      with_arguments<T, norm, to_cache>(wanted, want, in_place, reference);
      CHECK(wrong_elements(got.q, want.q, kernel.tolerance) == 0);
      CHECK(wrong_elements(got.k, want.k, kernel.tolerance) == 0);
      CHECK(wrong_elements(got.k_cache, want.k_cache, kernel.tolerance) == 0);
      CHECK(wrong_elements(got.v_cache, want.v_cache, kernel.tolerance) == 0);
      CHECK(wrong_elements(data.qkv, wanted.qkv, kernel.tolerance) == 0);
    }
}

const auto kAsDrawn = [](auto&) {};

template <class T, class Table, class Position>
void check_all_ropes(const RopeConfig& config) {
  for (const RopeOrder order : {RopeOrder::halved, RopeOrder::interleaved}) {
    check_rope<T, Table, Position, false, false>(order, config, kRopeShapes, kAsDrawn);
    check_rope<T, Table, Position, true, false>(order, config, kRopeShapes, kAsDrawn);
    check_rope<T, Table, Position, false, true>(order, config, kRopeShapes, kAsDrawn);
    check_rope<T, Table, Position, true, true>(order, config, kRopeShapes, kAsDrawn);
  }
}

/// Arguments of a launch that reaches no memory, but for what is wrong.
void launch_nothing(const kiln::Runtime& runtime, int tokens, int q_heads, int kv_heads,
                    int head_dim, int rotary_dim, RopeStride q_stride, int block_size,
                    RopeStride block_stride) {
  float* const none = nullptr;
  const float* const in = nullptr;
  const std::int64_t* const indices = nullptr;
  runtime.tuned(rope_kernel<float>())({}, none, none, in, in, in, indices, tokens, q_heads,
                                      kv_heads, head_dim, rotary_dim, 10, 4096L, 4096L, q_stride,
                                      4096L);
  runtime.tuned(rope_norm_paged_kernel<float>())(
      {}, none, none, none, in, in, in, in, indices, indices, tokens, q_heads, kv_heads, head_dim,
      rotary_dim, 10, 3, block_size, block_stride, 4096L, q_stride, 4096L, 4096L, in, in, 1e-5f);
}

}  // namespace

TEST_CASE("rope: all kinds and sizes, in place and not, of slices of one array",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  check_all_ropes<kiln::bfloat16, float, std::int64_t>(
      {.block = 64, .vector = 8, .pairs = 1, .heads = 2, .streaming = true});
  check_all_ropes<float, float, int>(
      {.block = 32, .vector = 2, .pairs = 4, .heads = 3, .streaming = false});
}

TEST_CASE("rope: heads that are copied ahead of the warps that rotate them", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  RopeConfig config{.block = 64, .vector = 8, .pairs = 1, .heads = 1, .streaming = false};
  config.stages = 2;
  config.width = 128;
  check_all_ropes<kiln::bfloat16, float, int>(config);
  config.width = 64;
  check_all_ropes<kiln::bfloat16, float, std::int64_t>(config);
  config.stages = 3;
  check_rope<kiln::float16, kiln::float16, int, true, true>(RopeOrder::halved, config, kRopeShapes,
                                                            kAsDrawn);
  check_all_ropes<float, float, int>({.block = 32,
                                      .vector = 4,
                                      .pairs = 1,
                                      .heads = 1,
                                      .streaming = false,
                                      .width = 128,
                                      .stages = 1});
}

TEST_CASE("rope: heads of the size that a kernel was compiled for, and others",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  check_all_ropes<kiln::bfloat16, float, int>(
      {.block = 64, .vector = 8, .pairs = 1, .heads = 2, .streaming = false, .width = 96});
}

TEST_CASE("rope: half precision, its tables, and one head per thread", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  for (const RopeOrder order : {RopeOrder::halved, RopeOrder::interleaved}) {
    check_rope<kiln::float16, kiln::float16, int, true, true>(order, {128, 8, 2, 1, false},
                                                              kRopeShapes, kAsDrawn);
    check_rope<kiln::bfloat16, kiln::bfloat16, int, false, false>(order, {128, 4, 1, 4, false},
                                                                  kRopeShapes, kAsDrawn);
  }
}

TEST_CASE(
    "rope: positions without a row of the table give NaNs, slots outside of the cache nothing",
    "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  const RopeShape shape{6, 2, 1, 64, 32, 0};
  const auto spoil = [](auto& d) {
    d.positions = {3, -1, kMaxPosition, kFar, -kFar, kMaxPosition - 1};
    d.slots = {-1, 5, d.blocks * kBlockSize, kFar, -kFar, d.blocks * kBlockSize - 1};
  };
  for (const int gap : {0, 1}) {  // wide accesses, and single elements
    RopeShape s = shape;
    s.gap = gap;
    for (const RopeOrder order : {RopeOrder::halved, RopeOrder::interleaved})
      for (const int stages : {0, 2})
        check_rope<float, float, std::int64_t, false, true>(
            order, {64, 4, 1, 1, false, stages > 0 ? 64 : 0, 0, stages}, {s}, spoil);
  }
  // The reference itself: the rotated part is NaN, the rest is copied; two tokens are cached.
  RopeData<float, float, std::int64_t> data(shape);
  spoil(data);
  RopeResult<float> got(data), before(data);
  const auto kernel = rope_paged_kernel<float>();
  with_arguments<float, false, true>(
      data, got, false, [&](const auto&, auto... arguments) { kernel.reference(arguments...); });
  for (int t = 0; t < 6; ++t)
    for (int e = 0; e < 128; ++e) {
      const float y = got.q[size_of(t * 128 + e)], x = data.qkv[size_of(t * shape.stride() + e)];
      INFO(t << " " << e);
      if (e % 64 >= 32)
        CHECK(y == x);
      else
        CHECK(std::isnan(y) == (t != 0 && t != 5));
    }
  std::size_t changed = 0;
  for (std::size_t i = 0; i < before.v_cache.size(); ++i)
    changed += before.v_cache[i] != got.v_cache[i];
  CHECK(changed == 2 * 64);
}

TEST_CASE("rope: NaNs and infinities reach what is computed of them alone", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const RopeShape shape{3, 2, 1, 64, 32, 0};
  const auto spoil = [](auto& d) {
    d.qkv[5] = template_test::kNan;             // rotated
    d.qkv[64 + 40] = template_test::kInfinity;  // not rotated
  };
  for (const RopeOrder order : {RopeOrder::halved, RopeOrder::interleaved}) {
    const RopeConfig config{64, 4, 2, 2, false};
    check_rope<float, float, std::int64_t, false, false>(order, config, {shape}, spoil);
    check_rope<float, float, std::int64_t, true, false>(order, config, {shape}, spoil);
    RopeData<float, float, std::int64_t> data(shape);
    spoil(data);
    RopeResult<float> got(data);
    const HostInstance<RopeKernel<float>> rope(rope_kernel<float>(order), config);
    with_arguments<float, false, false>(data, got, false, rope);
    int nans = 0;
    for (std::size_t i = 0; i < got.q.size(); ++i) nans += std::isnan(got.q[i]);
    CHECK(nans == 2);
    CHECK(got.q[64 + 40] == template_test::kInfinity);
  }
}

TEST_CASE("rope: sizes that make no sense are refused, and nothing is touched where there is none",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  kiln::RuntimeOptions options;
  options.device = "host";
  options.mode = kiln::Mode::untuned;
  options.store.disk = false;
  const kiln::Runtime runtime(options);
  CHECK_NOTHROW(launch_nothing(runtime, 0, 8, 2, 64, 64, 512, 16, 4096));
  CHECK_NOTHROW(launch_nothing(runtime, 5, 0, 0, 64, 64, 512, 16, 4096));
  CHECK_NOTHROW(launch_nothing(runtime, 5, 8, 2, 0, 0, 512, 16, 4096));
  const auto refused = [&](auto... arguments) {
    try {
      launch_nothing(runtime, arguments...);
    } catch (const kiln::UserError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const auto has = [](const std::string& text, const char* part) {
    INFO(text);
    CHECK(text.find(part) != text.npos);
  };
  has(refused(1, 8, 2, 64, 63, 512L, 16, 4096L), "rotary_dim is 63");
  has(refused(1, 8, 2, 64, 66, 512L, 16, 4096L), "at most head_dim, which is 64");
  has(refused(1, 8, 2, 64, -2, 512L, 16, 4096L), "rotary_dim is -2");
  has(refused(1, 8, 2, 64, 64, 511L, 16, 4096L), "q_stride is 511, less than a token's 512");
  has(refused(-1, 8, 2, 64, 64, 512L, 16, 4096L), "negative");
  has(refused(0, 8, 2, 64, 64, 512L, 0, 4096L), "block_size is not positive");
  has(refused(0, 8, 2, 64, 64, 512L, 16, 2047L), "block_stride is 2047, less than a block's 2048");
}
