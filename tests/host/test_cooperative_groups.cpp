// Cooperative groups, against what their definitions say for every thread.
#include <algorithm>
#include <bit>
#include <numeric>

#include "host_test.hpp"
#include "library_kernels.hpp"

using namespace host_test;

namespace {

std::vector<int> group_values(int threads) {
  std::vector<int> values(threads);
  for (int i = 0; i < threads; ++i) values[i] = (i * 7919) % 1013 - 500;
  return values;
}

// The rank-th set bit.
int nth_lane(unsigned mask, int rank) {
  for (; rank > 0; --rank) mask &= mask - 1;
  return std::countr_zero(mask);
}

// Reductions of a coalesced group: a scan that doubles its reach, then the last member's value.
template <class T>
T scanned_sum(std::vector<T> values) {
  const int n = static_cast<int>(values.size());
  for (int by = 1; by < n; by *= 2) {
    for (int i = n - 1; i >= by; --i) values[i] = values[i] + values[i - by];
  }
  return values.back();
}

}  // namespace

TEST_CASE("tiles of every size", "[host][groups]") {
  for (int size : {1, 2, 4, 8, 16, 32}) {
    const Kernel k(kiln_test::kGroupsKernel, "tiles<" + std::to_string(size) + ">");
    const std::vector<int> in = group_values(96);
    std::vector<int> out(16 * 96, -1);
    k({1}, {96}, 0, out.data(), in.data());
    for (int t = 0; t < 96; ++t) {
      const int first = t / size * size, rank = t % size;
      const auto tile = [&](int i) { return in[first + i]; };
      int ballot = 0, same = 0, sum = 0, highest = tile(0), before = 0, any = 0, all = 1, agree = 1;
      for (int i = 0; i < size; ++i) {
        ballot |= (tile(i) & 1) << i;
        same |= ((tile(i) & 3) == (in[t] & 3) ? 1 : 0) << i;
        sum += tile(i);
        highest = std::max(highest, tile(i));
        if (i < rank) before += tile(i);
        any |= tile(i) > 400;
        all &= tile(i) > -400;
        agree &= tile(i) >> 20 == tile(0) >> 20;
      }
      const int everyone = static_cast<int>(size == 32 ? ~0u : (1u << size) - 1);
      const std::vector<int> want = {rank,
                                     t / size,
                                     96 / size,
                                     tile(size / 2),
                                     rank >= 1 ? tile(rank - 1) : in[t],
                                     rank + 1 < size ? tile(rank + 1) : in[t],
                                     size > 1 ? tile(rank ^ (size / 2)) : in[t],
                                     any + 2 * all,
                                     ballot,
                                     same,
                                     agree ? everyone + 1 : 0,
                                     sum,
                                     highest,
                                     before + in[t],
                                     before,
                                     6 * tile(0) + 2 * size};
      CAPTURE(size, t);
      CHECK(std::vector<int>(out.begin() + 16 * t, out.begin() + 16 * t + 16) == want);
    }
  }
}

TEST_CASE("blocks, their indices, and functions for any group", "[host][groups]") {
  const Kernel k(kiln_test::kGroupsKernel, "blocks");
  const std::vector<int> in = group_values(64);
  std::vector<int> out(2 * 64 * 8, -1);
  k({2}, {4, 8, 2}, 0, out.data(), in.data());
  for (int b = 0; b < 2; ++b) {
    for (int t = 0; t < 64; ++t) {
      const auto sum = [&](int size) {
        return std::accumulate(in.begin() + t / size * size, in.begin() + t / size * size + size,
                               0);
      };
      const int* o = &out[8 * (64 * b + t)];
      CAPTURE(b, t);
      CHECK(o[0] == t % 4 + 100 * (t / 4 % 8) + 10000 * (t / 32) + 1000000 * b);
      CHECK(o[1] == 64 + 4000);
      if (t == 0) CHECK(o[2] == sum(64));
      if (t % 8 == 0) CHECK(o[3] == sum(8));
      if (t % 4 == 0) CHECK(o[4] == sum(4));
      CHECK(o[5] == t % 8 / 2 + 40 + 100 * (t % 2));
      CHECK(o[6] == in[(t * 7) % 61]);
      CHECK(o[7] == 12);
    }
  }
}

TEST_CASE("groups of warps that diverge", "[host][groups]") {
  const Kernel k(kiln_test::kGroupsKernel, "diverging");
  const int threads = 160;
  const std::vector<int> in = group_values(threads);
  std::vector<int> out(6 * threads, -1);
  int counter = 1000;
  k({1}, {threads}, 0, out.data(), &counter, in.data());

  std::vector<int> places;
  for (int t = 0; t < threads; ++t) {
    CAPTURE(t);
    const int first = t / 8 * 8, number = t / 8, rounds = number % 5;
    std::vector<int> v(in.begin() + first, in.begin() + first + 8);
    if (number & 1) {
      for (int r = 0; r < rounds; ++r)
        std::fill(v.begin(), v.end(), std::accumulate(v.begin(), v.end(), 8 * r));
    } else {
      for (int r = 0; r <= 2 * rounds; ++r) {
        std::rotate(v.begin(), v.begin() + 3, v.end());
        for (int& value : v) ++value;
      }
    }
    CHECK(out[6 * t] == v[t % 8]);

    const int base = t / 32 * 32;
    const auto lanes = [&](auto holds) {
      unsigned mask = 0;
      for (int lane = 0; lane < 32; ++lane) mask |= (holds(in[base + lane]) ? 1u : 0u) << lane;
      return mask;
    };
    const auto rank_in = [&](unsigned mask) { return std::popcount(mask & ((1u << t % 32) - 1)); };
    const unsigned active = lanes([](int value) { return value % 3 == 0; });
    const bool is_active = in[t] % 3 == 0;
    if (is_active) {
      places.push_back(out[6 * t + 1]);
      int sum = 0;
      unsigned odd = 0;
      for (int i = 0; i < std::popcount(active); ++i) {
        const int value = in[base + nth_lane(active, i)];
        sum += value;
        odd |= static_cast<unsigned>(value & 1) << i;
      }
      const int rank = rank_in(active);
      const bool is_last = rank + 1 == std::popcount(active);
      CHECK(out[6 * t + 3] == sum);
      CHECK(static_cast<unsigned>(out[6 * t + 4]) == odd);
      CHECK(out[6 * t + 5] == in[is_last ? t : base + nth_lane(active, rank + 1)] + rank + 1);
    } else {
      CHECK(out[6 * t + 1] == -1);
    }
    const unsigned same = lanes([&](int value) { return (value & 3) == (in[t] & 3); });
    const unsigned half = lanes([&](int value) { return (value & 1) == (in[t] & 1); });
    int groups_before = 0;  // labels are numbered in the order of their first lanes
    for (int label = 0; label < 4; ++label) {
      const unsigned others = lanes([&](int value) { return (value & 3) == label; });
      groups_before += others && std::countr_zero(others) < std::countr_zero(same);
    }
    CHECK(out[6 * t + 2] == (is_active ? std::popcount(active) : 0) + 100 * std::popcount(same) +
                                10000 * rank_in(same) + 1000000 * std::popcount(half) +
                                100000000 * groups_before);
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 0; i < places.size(); ++i) CHECK(places[i] == 1000 + static_cast<int>(i));
  CHECK(counter == 1000 + static_cast<int>(places.size()));
}

TEST_CASE("floats are reduced in CUDA's order", "[host][groups]") {
  const Kernel k(kiln_test::kGroupsKernel, "floats");
  std::vector<float> in(64), out(128, -1);
  for (int i = 0; i < 64; ++i) in[i] = 1.0f / static_cast<float>(3 + i * i) + (i % 5 ? 0 : 1e5f);
  k({1}, {64}, 0, out.data(), in.data());
  for (int t = 0; t < 64; ++t) {
    const int first = t / 16 * 16;
    std::vector<float> tile(in.begin() + first, in.begin() + first + 16);
    for (int lanes = 8; lanes > 0; lanes /= 2) {
      const std::vector<float> old = tile;
      for (int i = 0; i < 16; ++i) tile[i] = old[i] + old[i ^ lanes];
    }
    CAPTURE(t);
    CHECK(out[2 * t] == tile[t % 16]);
    if (t % 16 >= 11) continue;
    std::vector<float> active;  // both tiles of the warp are in one place
    for (int i = t / 32 * 32; i < t / 32 * 32 + 32; ++i)
      if (i % 16 < 11) active.push_back(in[i]);
    CHECK(out[2 * t + 1] == scanned_sum(active));
  }
}

TEST_CASE("the last warp may be a part of one", "[host][groups]") {
  const Kernel k(kiln_test::kGroupsKernel, "tiles<8>");
  const std::vector<int> in = group_values(40);
  std::vector<int> out(16 * 40, -1);
  k({1}, {40}, 0, out.data(), in.data());
  for (int t = 0; t < 40; ++t) {
    CAPTURE(t);
    CHECK(out[16 * t + 2] == 5);
    CHECK(out[16 * t + 11] ==
          std::accumulate(in.begin() + t / 8 * 8, in.begin() + t / 8 * 8 + 8, 0));
  }
}

TEST_CASE("groups that a CPU has not are refused with a reason", "[host][groups]") {
  const std::string head =
      "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
      "__global__ void k(int* p) { ";
  CHECK_THAT(refusal(source_of(head + "cg::this_grid().sync(); }", "k")),
             contains("the host target has no grid_group::sync()"));
  CHECK_THAT(refusal(source_of(head + "auto t = cg::tiled_partition<64>(cg::this_thread_block()); "
                                      "p[0] = t.thread_rank(); }",
                               "k")),
             contains("the host target has tiles of 1, 2, 4, 8, 16 or 32 threads"));
  const Kernel k(head + "auto t = cg::tiled_partition(cg::this_thread_block(), p[0]); t.sync(); }",
                 "k");
  int size = 12;
  CHECK_THROWS_WITH(k({1}, {32}, 0, &size), contains("tiled_partition"));
}
