// Kernels that use CUDA's libraries: the host target runs them, NVRTC must compile them unchanged.
#pragma once

namespace kiln_test {

inline constexpr const char* kGroupsKernel = R"(
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

struct Wide { int part[5]; };

// Works for any group, as the programming guide's first example does.
__device__ int sum_of(cg::thread_group group, int* scratch, int value) {
  const int rank = group.thread_rank();
  for (int i = group.size() / 2; i > 0; i /= 2) {
    scratch[rank] = value;
    group.sync();
    if (rank < i) value += scratch[rank + i];
    group.sync();
  }
  return value;
}

template <unsigned size>
__global__ void tiles(int* out, const int* in) {
  const cg::thread_block block = cg::this_thread_block();
  const cg::thread_block_tile<size> tile = cg::tiled_partition<size>(block);
  const int t = block.thread_rank(), v = in[t];
  out += 16 * t;
  out[0] = tile.thread_rank();
  out[1] = tile.meta_group_rank();
  out[2] = tile.meta_group_size();
  out[3] = tile.shfl(v, size / 2);
  out[4] = tile.shfl_up(v, 1);
  out[5] = tile.shfl_down(v, 1);
  out[6] = tile.shfl_xor(v, size / 2);
  out[7] = tile.any(v > 400) + 2 * tile.all(v > -400);
  out[8] = tile.ballot(v & 1);
  out[9] = tile.match_any(v & 3);
  int agree;
  out[10] = tile.match_all(v >> 20, agree) + agree;
  out[11] = cg::reduce(tile, v, cg::plus<int>());
  out[12] = cg::reduce(tile, v, [](int a, int b) { return a < b ? b : a; });
  out[13] = cg::inclusive_scan(tile, v);
  out[14] = cg::exclusive_scan(tile, v, cg::plus<int>());
  Wide wide = {{v, 1, 2, 3, 5 * v}};
  wide = tile.shfl(wide, 0);
  out[15] = wide.part[0] + wide.part[4] + tile.size() + tile.num_threads();
}

__global__ void blocks(int* out, const int* in) {
  __shared__ int scratch[64];
  __shared__ int copied[64];
  cg::thread_block block = cg::this_thread_block();
  const dim3 at = block.thread_index(), b = block.group_index();
  const int t = block.thread_rank();
  out += 8 * cg::this_grid().thread_rank();
  out[0] = at.x + 100 * at.y + 10000 * at.z + 1000000 * b.x;
  out[1] = block.size() + 1000 * block.dim_threads().x;
  out[2] = sum_of(block, scratch, in[t]);
  cg::sync(block);
  auto tile = cg::tiled_partition<8>(block);
  out[3] = sum_of(tile, scratch + t / 8 * 8, in[t]);
  block.sync();
  auto part = cg::tiled_partition(block, 4);
  out[4] = sum_of(part, scratch + t / 4 * 4, in[t]);
  auto inner = cg::tiled_partition<2>(tile);
  out[5] = inner.meta_group_rank() + 10 * inner.meta_group_size() + 100 * inner.thread_rank();
  cg::memcpy_async(block, copied, in, sizeof(int) * 61);
  cg::wait(block);
  out[6] = copied[(t * 7) % 61];
  out[7] = cg::this_grid().num_blocks() + 10 * cg::this_thread().size();
}

// Warps and their lanes part ways: every tile makes its own number of rounds, on two paths.
__global__ void diverging(int* out, int* counter, const int* in) {
  const auto block = cg::this_thread_block();
  const auto warp = cg::tiled_partition<32>(block);
  const auto tile = cg::tiled_partition<8>(block);
  const int t = block.thread_rank();
  int v = in[t], rounds = tile.meta_group_rank() % 5;
  if (tile.meta_group_rank() & 1) {
    for (int r = 0; r < rounds; ++r) {
      v = cg::reduce(tile, v + r, cg::plus<int>());
      if (r & 1) tile.sync();
    }
  } else {
    for (int r = 0; r <= 2 * rounds; ++r) v = tile.shfl(v, (tile.thread_rank() + 3) % 8) + 1;
  }
  warp.sync();
  out[6 * t] = v;
  int place = -1, together = 0;
  if (in[t] % 3 == 0) {
    const auto active = cg::coalesced_threads();
    together = active.size();
    if (active.thread_rank() == 0) place = atomicAdd(counter, active.size());
    place = active.shfl(place, 0) + active.thread_rank();
    out[6 * t + 3] = cg::reduce(active, in[t], cg::plus<int>());
    out[6 * t + 4] = active.ballot(in[t] & 1);
    out[6 * t + 5] = active.shfl_down(in[t], 1) + cg::inclusive_scan(active, 1);
  }
  warp.sync();
  const auto same = cg::labeled_partition(warp, in[t] & 3);
  const auto half = cg::binary_partition(warp, in[t] & 1);
  out[6 * t + 1] = place;
  out[6 * t + 2] = together + 100 * same.size() + 10000 * same.thread_rank() +
                   1000000 * half.size() + 100000000 * same.meta_group_rank();
}

__global__ void floats(float* out, const float* in) {
  const auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  const int t = cg::this_thread_block().thread_rank();
  out[2 * t] = cg::reduce(tile, in[t], cg::plus<float>());
  if (t % 16 < 11) out[2 * t + 1] = cg::reduce(cg::coalesced_threads(), in[t], cg::plus<float>());
}
)";

inline constexpr const char* kStandardKernel = R"(
#include <math_constants.h>
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/cassert>
#include <cuda/std/cfloat>
#include <cuda/std/climits>
#include <cuda/std/cmath>
#include <cuda/std/complex>
#include <cuda/std/concepts>
#include <cuda/std/cstddef>
#include <cuda/std/cstdint>
#include <cuda/std/cstring>
#include <cuda/std/functional>
#include <cuda/std/initializer_list>
#include <cuda/std/limits>
#include <cuda/std/numbers>
#include <cuda/std/span>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
#include <cuda/std/version>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
namespace cs = cuda::std;

static_assert(cs::is_same_v<cs::common_type_t<int, float>, float>);
static_assert(cs::is_invocable_v<cs::plus<>, int, int> && !cs::is_invocable_v<cs::plus<>, int>);
static_assert(cs::is_same_v<cs::invoke_result_t<cs::minus<>, int, double>, double>);
static_assert(cs::is_trivially_copyable_v<cs::array<int, 3>>);
static_assert(cs::is_nothrow_move_constructible_v<int> && cs::is_trivially_copy_assignable_v<int>);
static_assert(cs::tuple_size_v<cs::tuple<int, float>> == 2);
static_assert(cs::is_same_v<cs::tuple_element_t<1, cs::pair<int, float>>, float>);
static_assert(cs::numeric_limits<cs::int32_t>::max() == INT_MAX && sizeof(cs::size_t) == 8);
static_assert(cs::popcount(0xf0u) == 4 && cs::bit_ceil(9u) == 16 && cs::bit_floor(9u) == 8);
static_assert(cs::countl_zero((unsigned char)1) == 7 && cs::countr_zero((unsigned short)0) == 16);
static_assert(cs::rotl(0x80000001u, 4) == 0x18u && cs::rotr(1u, 1) == 0x80000000u);
static_assert(cs::has_single_bit(64ull) && cs::bit_width(255u) == 8);
static_assert(cs::max(3, 4) == 4 && cs::min({5, 2, 7}) == 2);
static_assert(cs::integral<int> && cs::floating_point<float> && cs::same_as<int, int>);
static_assert(cs::array{1, 2, 3}[1] == 2 && cs::get<0>(cs::pair{1, 2.5}) == 1);

template <class T>
__device__ T sum(cs::span<const T> values) {
  T all{};
  for (const T& value : values) all += value;
  return all;
}

__global__ void standard(float* out, const float* in) {
  const cs::complex<float> z(in[0], in[1]), w(in[2], in[3]);
  const auto product = z * w, quotient = z / w, root = cs::sqrt(z), e = cs::exp(w);
  out[0] = product.real();
  out[1] = product.imag();
  out[2] = quotient.real();
  out[3] = quotient.imag();
  out[4] = root.real();
  out[5] = root.imag();
  out[6] = e.real();
  out[7] = cs::abs(z) + cs::norm(w) + cs::arg(cs::conj(z));
  cs::array<float, 4> a{in[0], in[1], in[2], in[3]};
  auto [x, y, u, v] = a;
  out[8] = sum<float>(a) + x - v;
  auto t = cs::make_tuple(in[0], 7, in[1]);
  auto& [t0, t1, t2] = t;
  t1 += 1;
  out[9] = t0 * t1 + cs::get<2>(t) + t2;
  float m;
  int n;
  cs::tie(m, n, cs::ignore) = t;
  out[10] = m + n;
  out[11] = cs::apply([](float f, int g, float h) { return f * g - h; }, t);
  out[12] = cs::pow(in[2], 2) + cs::sqrt(4) + cs::fmax(in[0], 1.5f) + cs::abs(-3.5f);
  auto [first, second] = cs::make_pair(in[3], 2);
  cs::swap(a[0], a[1]);
  out[13] = first * second + a[0] + cs::plus<>{}(in[0], 1) + cs::bit_cast<float>(0x3f800000u);
  out[14] = cs::isnan(in[0]) + cs::invoke(cs::minus<float>{}, in[0], in[1]) +
            (cs::numeric_limits<float>::infinity() > in[0]);
  cs::pair<int, float> both{3, in[0]};
  out[15] = cs::get<1>(both) + cs::move(both).first +
            (cs::tuple<int, int>(1, 2) < cs::tuple<int, int>(1, 3));
  out[16] = cs::exchange(a[2], 5.0f) + a[2];
  out[17] = CUDART_PI_F;
  out[18] = CUDART_INF_F;
  out[19] = cs::numbers::pi_v<float>;
}
)";

inline constexpr const char* kIntrinsicsKernel = R"(
__global__ void intrinsics(double* out, float x, float y, double d, unsigned a, unsigned b, int i) {
  out[0] = __fadd_ru(x, y) + __fmaf_rd(x, y, x) + __fdiv_rz(x, y) + __fsqrt_ru(x) + __frcp_rd(x);
  out[1] = __dadd_ru(d, d) + __fma_rd(d, d, d) + __ddiv_rz(d, d) + __dsqrt_ru(d) + __drcp_rd(d);
  out[2] = __float2int_rd(x) + __double2ull_ru(d) + __ll2float_rz(i) + __double2float_ru(d);
  out[3] = __vadd4(a, b) + __vmaxs2(a, b) + __vabsdiffu4(a, b) + __vsads2(a, b) + __vabs2(a);
  out[4] = __dp4a(a, b, a) + __dp2a_lo(a, b, a) + __byte_perm(a, b, a) + __funnelshift_lc(a, b, a);
  out[5] = __umul24(a, b) + __usad(a, b, a) + __uhadd(a, b) + __rhadd(i, i) + __fns(a, 0, i);
}
)";

}  // namespace kiln_test
