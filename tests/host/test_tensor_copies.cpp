// Copies of boxes by tensor maps: places under each swizzle, edges, multicast, stores and sums, and
// what is wrong about a copy.
#include <numeric>

#include "hopper_test.hpp"

using namespace host_test;

namespace {

// Loads the box at (x, y) and copies the bytes of shared memory out as they lie.
constexpr const char* kLoad = R"(
  __global__ void load(const __grid_constant__ hopper::TensorMap map, unsigned char* out, int bytes,
                       int x, int y) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ hopper::Barrier full;
    if (threadIdx.x == 0) { full.init(1); hopper::publish_barriers(); }
    __syncthreads();
    if (threadIdx.x == 0) {
      full.arrive_expect(bytes);
      hopper::load_tile(shared, map, full, x, y);
    }
    full.wait(0);
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = shared[i];
  })";

}  // namespace

TEST_CASE("a box lies in shared memory as its swizzle says, with zeros outside the array",
          "[host][tensor]") {
  Kernel load(std::string(kHopperHead) + kLoad, "load");
  const int width = 80, height = 37;  // of two-byte elements: rows of 160 bytes
  std::vector<std::uint16_t> array(width * height);
  std::iota(array.begin(), array.end(), std::uint16_t{1});
  for (unsigned span : {0u, 32u, 64u, 128u}) {
    const unsigned columns = span == 0 ? 40 : span / 2;
    for (unsigned rows : {1u, 8u, 20u, 37u, 64u}) {
      for (const auto& [x, y] :
           {std::pair{0, 0}, {16, 3}, {72, 30}, {-8, -5}, {200, 0}, {0, -100}, {72, 36}}) {
        CAPTURE(span, rows, x, y);
        const HostTensorMap map =
            tensor_map(array.data(), HostElement::bf16, {80, 37}, {columns, rows}, span);
        const unsigned bytes = columns * rows * 2;
        std::vector<std::uint16_t> out(columns * rows, 0xabcd), expected(out.size());
        for (unsigned r = 0; r < rows; ++r)
          for (unsigned c = 0; c < columns; ++c) {
            const int ax = x + int(c), ay = y + int(r);
            const bool inside = ax >= 0 && ax < width && ay >= 0 && ay < height;
            const std::size_t unit =
                span == 0 ? r * columns * 2 + c / 8 * 16 : unit_place(r, c / 8, span);
            expected[unit / 2 + c % 8] = inside ? array[ay * width + ax] : 0;
          }
        load.in_clusters({1}, {1}, {64}, bytes, map, out.data(), int(bytes), x, y);
        CHECK(out == expected);
      }
    }
  }
}

TEST_CASE("maps of one to five dimensions and of other types", "[host][tensor]") {
  Kernel load(std::string(kHopperHead) + R"(
    __global__ void load(const __grid_constant__ hopper::TensorMap map, int* out, int n, int a, int b,
                         int c, int d, int e) {
      extern __shared__ __align__(128) int shared[];
      __shared__ hopper::Barrier full;
      if (threadIdx.x == 0) {
        full.init(1);
        full.arrive_expect(n * 4);
        hopper::load_tile(shared, map, full, a, b, c, d, e);
      }
      __syncthreads();
      full.wait(0);
      for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = shared[i];
    })",
              "load");
  const std::vector<std::uint64_t> size = {12, 5, 4, 3, 2};
  const std::vector<unsigned> box = {4, 3, 2, 2, 2};
  std::vector<int> array(12 * 5 * 4 * 3 * 2);
  std::iota(array.begin(), array.end(), 1);
  const int at[5] = {8, 3, -1, 2, 1};
  HostTensorMap map = tensor_map(array.data(), HostElement::s32, size, box);
  map.traverse[1] = 2;
  const int n = 4 * 3 * 2 * 2 * 2;
  std::vector<int> out(n, -1), expected(n);
  for (int i = 0; i < n; ++i) {
    int rest = i, place = 0, scale = 1;
    bool inside = true;
    for (int d = 0; d < 5; ++d) {
      const int coordinate = at[d] + rest % int(box[d]) * (d == 1 ? 2 : 1);
      rest /= int(box[d]);
      inside = inside && coordinate >= 0 && coordinate < int(size[d]);
      place += coordinate * scale;
      scale *= int(size[d]);
    }
    expected[i] = inside ? array[place] : 0;
  }
  load.in_clusters({1}, {1}, {32}, n * 4, map, out.data(), n, at[0], at[1], at[2], at[3], at[4]);
  CHECK(out == expected);
  map.fill_with_nan = 1;  // means nothing for integers
  load.in_clusters({1}, {1}, {32}, n * 4, map, out.data(), n, at[0], at[1], at[2], at[3], at[4]);
  CHECK(out == expected);
  map.element = HostElement::f32;
  load.in_clusters({1}, {1}, {32}, n * 4, map, out.data(), n, at[0], at[1], at[2], at[3], at[4]);
  for (int i = 0; i < n; ++i) CHECK(out[i] == (expected[i] ? expected[i] : -1));
}

TEST_CASE("each block of a cluster loads a part for all of them", "[host][tensor][cluster]") {
  Kernel k(std::string(kHopperHead) + R"(
    __global__ void k(const __grid_constant__ hopper::TensorMap map, float* out, int rounds) {
      extern __shared__ __align__(1024) float tile[];  // 16 rows of 8 per block
      __shared__ hopper::Barrier full, empty;
      const int rank = hopper::cluster_rank(), size = hopper::cluster_size();
      if (threadIdx.x == 0) { full.init(1); empty.init(size); hopper::publish_barriers(); }
      hopper::cluster_sync();
      float sum = 0;
      for (int r = 0; r < rounds; ++r) {
        if (threadIdx.x == 0) {
          empty.wait((r & 1) ^ 1);
          full.arrive_expect(size * 512);
          const int cluster = blockIdx.x / size;
          hopper::load_tile_to((1u << size) - 1, tile + rank * 128, map, full, 8 * r,
                               cluster * 16 * size + rank * 16);
        }
        __syncwarp();
        full.wait(r & 1);
        sum = sum * 2 + tile[(threadIdx.x * 7 + r) % (size * 128)];
        __syncthreads();
        if (threadIdx.x < size) empty.arrive_at(threadIdx.x);
      }
      out[blockIdx.x * 64 + threadIdx.x] = sum;
      hopper::cluster_sync();
    })",
           "k");
  for (int size : {1, 2, 4}) {
    const int rounds = 6, clusters = 2, rows = clusters * 16 * size, columns = rounds * 8;
    std::vector<float> array(rows * columns), out(clusters * size * 64);
    std::iota(array.begin(), array.end(), 1.0f);
    const HostTensorMap map = tensor_map(
        array.data(), HostElement::f32,
        {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows)}, {8, 16});
    k.in_clusters({unsigned(size)}, {unsigned(clusters * size)}, {64}, size * 512, map, out.data(),
                  rounds);
    for (int i = 0; i < clusters * size * 64; ++i) {
      const int cluster = i / 64 / size;
      float sum = 0;
      for (int r = 0; r < rounds; ++r) {
        const int place = (i % 64 * 7 + r) % (size * 128);
        sum = sum * 2 + array[(cluster * 16 * size + place / 8) * columns + 8 * r + place % 8];
      }
      CHECK(out[i] == sum);
    }
  }
}

TEST_CASE("stores and sums leave out what is outside the array", "[host][tensor]") {
  const std::string text = std::string(kHopperHead) + R"(
    template <class T, int kAdd, int kSpan> __global__ void k(
        const __grid_constant__ hopper::TensorMap map, int x, int y) {
      extern __shared__ __align__(1024) unsigned char shared[];
      constexpr int kColumns = kSpan / sizeof(T);
      const int row = threadIdx.x;  // 16 of them
      for (int c = 0; c < kColumns; ++c) {
        const int place = row * kSpan + c * sizeof(T);
        const int at = place ^ ((place >> 7 & (kSpan / 16 - 1)) << 4);
        *reinterpret_cast<T*>(shared + at) = T((row * 3 + c) % 50);
      }
      hopper::publish_shared();
      __syncthreads();
      if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
          if constexpr (kAdd) hopper::add_tile(map, shared, x, y);
          else hopper::store_tile(map, shared, x, y);
          hopper::commit_stores();
        }
        hopper::wait_stores<0>();
      }
    })";
  const auto expected_of = [](auto first, int add, int columns, int x, int y, int c, int r) {
    const int bx = c - x, by = r - y;
    if (bx < 0 || bx >= columns || by < 0 || by >= 16) return static_cast<int>(first);
    const int value = (by * 3 + bx) % 50;
    return add ? static_cast<int>(first) + 2 * value : value;
  };
  for (int add : {0, 1}) {
    Kernel floats(text, "k<float, " + std::to_string(add) + ", 64>");
    Kernel halves(text, "k<__nv_bfloat16, " + std::to_string(add) + ", 128>");
    for (const auto& [x, y] : {std::pair{0, 0}, {8, 2}, {24, 25}, {0, -7}, {104, 0}}) {
      CAPTURE(add, x, y);
      std::vector<float> f(32 * 30);
      std::vector<std::uint16_t> h(72 * 30);
      for (std::size_t i = 0; i < f.size(); ++i) f[i] = static_cast<float>(i % 100);
      for (std::size_t i = 0; i < h.size(); ++i) h[i] = bf16(static_cast<float>(i % 50));
      floats.in_clusters({1}, {1}, {16}, 16 * 64,
                         tensor_map(f.data(), HostElement::f32, {32, 30}, {16, 16}, 64), x, y);
      halves.in_clusters({1}, {1}, {16}, 16 * 128,
                         tensor_map(h.data(), HostElement::bf16, {72, 30}, {64, 16}, 128), x, y);
      for (int r = 0; r < 30; ++r) {
        for (int c = 0; c < 32; ++c) {
          const int i = r * 32 + c;
          CHECK(f[i] == static_cast<float>(expected_of(i % 100, add, 16, x, y, c, r)));
        }
        for (int c = 0; c < 72; ++c) {
          const int i = r * 72 + c;
          CHECK(from_bf16(h[i]) == static_cast<float>(expected_of(i % 50, add, 64, x, y, c, r)));
        }
      }
    }
  }
}

TEST_CASE("copies of bytes side by side, and stores that take place late", "[host][tensor]") {
  Kernel k(std::string(kHopperHead) + R"(
    __global__ void k(int* out, const int* in, int early) {
      extern __shared__ __align__(128) int cells[];
      __shared__ hopper::Barrier full;
      if (threadIdx.x == 0) {
        full.init(1);
        full.arrive_expect(256);
        hopper::load_bytes(cells, in, 256, full);
      }
      __syncthreads();
      full.wait(0);
      cells[threadIdx.x] += 1;
      hopper::publish_shared();
      __syncthreads();
      if (threadIdx.x == 0) {
        hopper::store_bytes(out, cells, 256);
        hopper::commit_stores();
        if (!early) hopper::wait_stores_read<0>();
        cells[5] = -1;  // too early: the copy may still read it
        hopper::wait_stores<0>();
      }
    })",
           "k");
  std::vector<int> in(64), out(64), expected(64);
  std::iota(in.begin(), in.end(), 100);
  std::iota(expected.begin(), expected.end(), 101);
  k.in_clusters({1}, {1}, {64}, 256, out.data(), in.data(), 0);
  CHECK(out == expected);
  expected[5] = -1;
  k.in_clusters({1}, {1}, {64}, 256, out.data(), in.data(), 1);
  CHECK(out == expected);
}

TEST_CASE("a store that was only read is seen when it was waited for, or behind the kernel",
          "[host][tensor]") {
  Kernel k(std::string(kHopperHead) + R"(
    __global__ void k(const __grid_constant__ hopper::TensorMap map, int* array, int* seen, int whole) {
      extern __shared__ __align__(128) int cells[];
      cells[threadIdx.x] = 100 + threadIdx.x;
      hopper::publish_shared();
      __syncthreads();
      if (threadIdx.x != 0) return;
      for (int i = 0; i < 2; ++i) {
        hopper::store_tile(map, cells + 32 * i, 0, i);
        hopper::commit_stores();
      }
      hopper::wait_stores_read<0>();
      for (int i = 0; i < 64; ++i) cells[i] = -1;  // what was read stays as it was
      if (whole) hopper::wait_stores<1>();
      seen[0] = array[7];
      seen[1] = array[32 + 7];
      if (whole) hopper::wait_stores<0>();
      seen[2] = array[32 + 7];
    })",
           "k");
  for (const bool whole : {false, true}) {
    CAPTURE(whole);
    std::vector<int> array(64), seen(3, -7), expected(64);
    for (int i = 0; i < 32; ++i) {
      expected[i] = 100 + i;
      expected[32 + i] = 132 + (i ^ 4);  // swizzled by its place in shared memory
    }
    const HostTensorMap map = tensor_map(array.data(), HostElement::s32, {32, 2}, {32, 1}, 128);
    k.in_clusters({1}, {1}, {64}, 256, map, array.data(), seen.data(), int(whole));
    CHECK(array == expected);
    CHECK(seen == (whole ? std::vector<int>{107, 0, 135} : std::vector<int>{0, 0, 0}));
  }
}

TEST_CASE("a thread that only waits until its stores were read has 64 of them under way",
          "[host][tensor]") {
  Kernel k(std::string(kHopperHead) + R"(
    __global__ void k(int* out, int* seen) {
      extern __shared__ __align__(128) int cells[];
      for (int i = 0; i < 70; ++i) {
        for (int j = 0; j < 4; ++j) cells[j] = 1 + i;
        hopper::store_bytes(out + 4 * i, cells, 16);
        hopper::commit_stores();
        hopper::wait_stores_read<0>();
      }
      for (int i = 0; i < 70; ++i) seen[i] = out[4 * i];
    })",
           "k");
  std::vector<int> out(4 * 70), seen(70, -7), expected(70);
  k.in_clusters({1}, {1}, {1}, 256, out.data(), seen.data());
  std::iota(expected.begin(), expected.begin() + 6, 1);
  CHECK(seen == expected);
  for (int i = 0; i < 70; ++i) CHECK(out[static_cast<std::size_t>(4 * i)] == 1 + i);
}

TEST_CASE("a box has as many coordinates as its map has dimensions", "[host][tensor]") {
  std::vector<float> array(1024);
  const auto words = [&](const HostTensorMap& map, const std::string& body) {
    Kernel k(std::string(kHopperHead) +
                 "__global__ void k(const __grid_constant__ hopper::TensorMap map) {"
                 "extern __shared__ __align__(1024) unsigned char s[];"
                 "__shared__ hopper::Barrier full;"
                 "if (threadIdx.x != 0) return;" +
                 body + "}",
             "k");
    return words_of([&] { k.in_clusters({1}, {1}, {32}, 2048, map); });
  };
  const HostTensorMap cube = tensor_map(array.data(), HostElement::f32, {32, 8, 4}, {32, 1, 1}),
                      line = tensor_map(array.data(), HostElement::f32, {1024}, {32});
  const auto load = [](const std::string& at) {
    return "full.init(1); full.arrive_expect(128); hopper::load_tile(s, map, full, " + at +
           "); full.wait(0);";
  };
  const auto store = [](const std::string& what, const std::string& at) {
    return "hopper::" + what + "(map, s, " + at +
           "); hopper::commit_stores(); hopper::wait_stores<0>();";
  };
  const auto prefetch = [](const std::string& at) {
    return "hopper::prefetch_tile(map, " + at + ");";
  };
  CHECK(words(cube, load("0, 0, 0") + store("store_tile", "0, 1, 0") + prefetch("0, 0, 1")) == "");
  CHECK(words(line, load("32") + store("store_tile", "64") + store("add_tile", "0") +
                        prefetch("0")) == "");
  const auto two_of_three = contains("2 coordinates, but its tensor map has 3 dimensions");
  CHECK_THAT(words(cube, load("0, 0")), two_of_three);
  CHECK_THAT(words(cube, store("store_tile", "0, 0")), two_of_three);
  CHECK_THAT(words(cube, store("add_tile", "0, 0")), two_of_three);
  CHECK_THAT(words(cube, prefetch("0, 0")), two_of_three);
  CHECK_THAT(words(line, load("0, 0")),
             contains("2 coordinates, but its tensor map has 1 dimensions"));
}

TEST_CASE("what is wrong about a copy is said", "[host][tensor]") {
  std::vector<float> array(64 * 64);
  const HostTensorMap good = tensor_map(array.data(), HostElement::f32, {64, 64}, {32, 8}, 128);
  const auto words = [&](const HostTensorMap& map, const char* body, unsigned cluster = 1) {
    Kernel k(std::string(kHopperHead) +
                 "__global__ void k(const __grid_constant__ hopper::TensorMap map, float* out) {"
                 "extern __shared__ __align__(1024) unsigned char s[];"
                 "__shared__ hopper::Barrier full;"
                 "if (threadIdx.x == 0) full.init(1); hopper::cluster_sync();" +
                 body + "}",
             "k");
    return words_of([&] { k.in_clusters({cluster}, {cluster}, {32}, 2048, map, array.data()); });
  };
  const char* load = R"(
    if (threadIdx.x == 0) { full.arrive_expect(1024); hopper::load_tile(s, map, full, 0, 0); }
    full.wait(0);)";
  CHECK(words(good, load).empty());
  // A byte count that is not the box's.
  const char* more = R"(
    if (threadIdx.x == 0) { full.arrive_expect(1040); hopper::load_tile(s, map, full, 0, 0); }
    full.wait(0);)";
  CHECK_THAT(words(good, more),
             contains("deadlock") && contains("0 of 1 arrivals missing, 16 bytes missing"));
  const char* less = R"(
    if (threadIdx.x == 0) { full.arrive_expect(1008); hopper::load_tile(s, map, full, 0, 0); }
    full.wait(0);)";
  CHECK_THAT(words(good, less), contains("16 bytes more than were expected"));
  // A place beyond the shared memory is found before anything is written.
  const char* beyond = R"(
    if (threadIdx.x == 0) {
      full.arrive_expect(1024);
      hopper::load_tile(s + 1152, map, full, 0, 0);
    }
    full.wait(0);)";
  CHECK_THAT(words(good, beyond),
             contains("a copy of 1024 bytes to byte") && contains("bytes of shared memory"));
  const char* unaligned = R"(
    if (threadIdx.x == 0) {
      full.arrive_expect(1024);
      hopper::load_tile(s + 64, map, full, 0, 0);
    }
    full.wait(0);)";
  CHECK_THAT(words(good, unaligned), contains("not a multiple of 128"));
  const char* to_array = R"(
    if (threadIdx.x == 0) { full.arrive_expect(1024); hopper::load_tile(out, map, full, 0, 0); }
    full.wait(0);)";
  CHECK_THAT(words(good, to_array), contains("an address outside of the shared memory"));
  const char* too_many = R"(
    if (threadIdx.x == 0) {
      full.arrive_expect(1024);
      hopper::load_tile_to(7, s, map, full, 0, 0);
    }
    full.wait(0);)";
  CHECK_THAT(words(good, too_many, 2), contains("blocks 7 (as bits) of a cluster of 2"));
  const char* nobody_waits = R"(
    if (threadIdx.x == 0) { full.arrive_expect(1024); hopper::load_tile(s, map, full, 0, 0); })";
  CHECK_THAT(words(good, nobody_waits), contains("exited while a copy to byte"));
  const char* nobody_waits_for_store = R"(
    if (threadIdx.x == 0) { hopper::store_tile(map, s, 0, 0); hopper::commit_stores(); })";
  CHECK_THAT(words(good, nobody_waits_for_store),
             contains("thread 0") && contains("exited before"));
  const char* stores_between = R"(
    if (threadIdx.x == 0) {
      hopper::store_tile(map, s, 2, 0);
      hopper::commit_stores();
      hopper::wait_stores<0>();
    })";
  CHECK_THAT(words(good, stores_between), contains("begins at byte 8 of a row"));
  const char* stores_before = R"(
    if (threadIdx.x == 0) {
      hopper::store_tile(map, s, -4, 0);
      hopper::commit_stores();
      hopper::wait_stores<0>();
    })";
  CHECK_THAT(words(good, stores_before), contains("stored from element -4"));
  const char* loads_between = R"(
    if (threadIdx.x == 0) { full.arrive_expect(1024); hopper::load_tile(s, map, full, -2, 0); }
    full.wait(0);)";
  CHECK_THAT(words(good, loads_between), contains("begins at byte -8 of a row"));
  HostTensorMap bad = good;
  bad.size[0] = bad.box[0] - 1;
  const char* stores = R"(
    if (threadIdx.x == 0) {
      hopper::store_tile(map, s, 0, 0);
      hopper::commit_stores();
      hopper::wait_stores<0>();
    })";
  CHECK(words(good, stores).empty());
  CHECK_THAT(words(bad, stores), contains("rows of") && contains("not a multiple of 16"));
  bad = good;
  bad.mark = 7;
  CHECK_THAT(words(bad, load), contains("a tensor map is none"));
  bad = good;
  bad.box[0] = 33;
  CHECK_THAT(words(bad, load), contains("132 bytes per row, not a multiple of 16"));
  bad = good;
  bad.swizzle = 64;
  CHECK_THAT(words(bad, load), contains("more than its swizzle of 64"));
  bad = good;
  bad.box[1] = 300;
  CHECK_THAT(words(bad, load), contains("300 elements in dimension 1"));
  // A thread that reads the tile without waiting for it finds what was there before.
  const char* reads_early = R"(
    s[threadIdx.x] = 77;
    __syncthreads();
    if (threadIdx.x == 0) { full.arrive_expect(1024); hopper::load_tile(s, map, full, 0, 0); }
    __syncthreads();
    if (s[threadIdx.x] != 77) __trap();
    __syncthreads();
    full.wait(0);
    if (s[threadIdx.x] == 77) __trap();)";
  CHECK(words(good, reads_early).empty());
}
