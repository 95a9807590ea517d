// Products of warpgroups, 8x8 matrices between registers and shared memory, and a small product of
// matrices as Hopper wants it, with all of them.
#include "hopper_test.hpp"

using namespace host_test;

namespace {

// D = A B^T + D for one warpgroup. A and B come as the bytes of their tiles.
constexpr const char* kProduct = R"(
  template <class T, int kTiles, int kSwizzle, int kSteps, hopper::Lies a_lies, hopper::Lies b_lies>
  __global__ void product(float* d, const uint4* a, const uint4* b, int a_bytes, int b_bytes) {
    extern __shared__ __align__(1024) unsigned char shared[];
    for (int i = threadIdx.x; i < a_bytes / 16; i += 128) reinterpret_cast<uint4*>(shared)[i] = a[i];
    unsigned char* const tile_b = shared + a_bytes;
    for (int i = threadIdx.x; i < b_bytes / 16; i += 128) reinterpret_cast<uint4*>(tile_b)[i] = b[i];
    hopper::publish_shared();
    __syncthreads();
    constexpr bool a_along = a_lies == hopper::Lies::along_k, b_along = b_lies == hopper::Lies::along_k;
    // Spans of 16 * kSteps k lie behind one another in an operand across.
    const auto of_a = hopper::operand<kSwizzle, a_lies>(shared, kSteps * 16 * kSwizzle);
    const auto of_b = hopper::operand<kSwizzle, b_lies>(tile_b, kSteps * 16 * kSwizzle);
    float sums[kTiles][4];
    hopper::multiply_fence();
    for (int k = 0; k < kSteps; ++k)
      hopper::multiply<T, a_lies, b_lies>(sums, hopper::advance(of_a, a_along ? 32 * k : 16 * kSwizzle * k),
                          hopper::advance(of_b, b_along ? 32 * k : 16 * kSwizzle * k), k > 0);
    hopper::multiply_commit();
    hopper::multiply_wait<0>();
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int j = 0; j < kTiles; ++j)
      for (int i = 0; i < 4; ++i)
        d[(row + i / 2 * 8) * 8 * kTiles + 8 * j + column + i % 2] = sums[j][i];
  })";

// The bytes of a tile of `outer` rows (or columns) and `depth` k, as TMA leaves it.
std::vector<std::uint16_t> tile(const std::vector<std::uint16_t>& values, unsigned outer,
                                unsigned depth, unsigned span, bool across) {
  const unsigned per_row = span / 2;  // elements
  const unsigned rows = across ? depth : outer, along = across ? outer : depth;
  const unsigned spans = (along + per_row - 1) / per_row;
  std::vector<std::uint16_t> bytes(std::size_t{spans} * rows * per_row);
  for (unsigned o = 0; o < outer; ++o)
    for (unsigned k = 0; k < depth; ++k) {
      const unsigned row = across ? k : o, at = across ? o : k;
      bytes[at / per_row * rows * per_row + unit_place(row, at % per_row / 8, span) / 2 + at % 8] =
          values[o * depth + k];
    }
  return bytes;
}

}  // namespace

TEST_CASE("products of a warpgroup: columns, swizzles, both ways to lie", "[host][warpgroup]") {
  struct Case {
    unsigned tiles, swizzle, steps;
    bool a_across, b_across;
  };
  for (const Case& c : {Case{1, 128, 4, false, false},
                        {2, 64, 2, false, false},
                        {5, 32, 1, false, false},
                        {8, 128, 2, false, true},
                        {16, 128, 4, true, false},
                        {12, 64, 2, true, true},
                        {32, 128, 4, false, false},
                        {17, 128, 1, false, false},
                        {24, 32, 2, true, true}}) {
    CAPTURE(c.tiles, c.swizzle, c.steps, c.a_across, c.b_across);
    const auto lies = [](bool across) {
      return std::string(across ? "hopper::Lies::across" : "hopper::Lies::along_k");
    };
    Kernel product(std::string(kHopperHead) + kProduct,
                   "product<__nv_bfloat16, " + std::to_string(c.tiles) + ", " +
                       std::to_string(c.swizzle) + ", " + std::to_string(c.steps) + ", " +
                       lies(c.a_across) + ", " + lies(c.b_across) + ">");
    const unsigned n = 8 * c.tiles, depth = 16 * c.steps;
    const auto a = random_bf16(64 * depth, 1), b = random_bf16(n * depth, 2);
    const auto tile_a = tile(a, 64, depth, c.swizzle, c.a_across);
    auto tile_b = tile(b, n, depth, c.swizzle, c.b_across);
    std::vector<float> d(64 * n, -1);
    const int a_bytes = int(tile_a.size() * 2), b_bytes = int(tile_b.size() * 2);
    product.in_clusters({1}, {1}, {128}, a_bytes + b_bytes, d.data(), tile_a.data(), tile_b.data(),
                        a_bytes, b_bytes);
    unsigned wrong = 0;
    for (unsigned i = 0; i < 64; ++i)
      for (unsigned j = 0; j < n; ++j) {
        float sum = 0;
        for (unsigned k = 0; k < depth; ++k)
          sum += from_bf16(a[i * depth + k]) * from_bf16(b[j * depth + k]);
        wrong += d[i * n + j] != sum;
      }
    CHECK(wrong == 0);
  }
}

TEST_CASE("products of __half, and products that take place late", "[host][warpgroup]") {
  Kernel k(std::string(kHopperHead) + R"(
    __global__ void k(float* out) {
      extern __shared__ __align__(1024) __half tile[];
      const int lane = threadIdx.x;
      for (int i = lane; i < 72 * 64; i += 128)  // A: 64 rows of 1.5, B: 8 rows of 2
        tile[i] = __float2half(i < 64 * 64 ? 1.5f : 2.0f);
      __syncthreads();
      float d[1][4];
      const auto a = hopper::operand<128>(tile), b = hopper::operand<128>(tile + 64 * 64);
      hopper::multiply<__half>(d, a, b, false);
      hopper::multiply_commit();
      hopper::multiply<__half>(d, a, b, true);
      hopper::multiply_commit();
      hopper::multiply_wait<1>();
      const float first = d[0][3];
      __syncthreads();
      for (int i = lane; i < 8 * 64; i += 128) tile[64 * 64 + i] = __float2half(4.0f);  // too early
      __syncthreads();
      hopper::multiply_wait<0>();
      out[lane * 2] = first;
      out[lane * 2 + 1] = d[0][3];
    })",
           "k");
  std::vector<float> out(256);
  k.in_clusters({1}, {1}, {128}, 72 * 128, out.data());
  for (int t = 0; t < 128; ++t) {
    CHECK(out[2 * t] == 48.0f);
    CHECK(out[2 * t + 1] == 48.0f + 96.0f);
  }
}

TEST_CASE("operands beyond the shared memory are an error", "[host][warpgroup]") {
  Kernel k(std::string(kHopperHead) + R"(
    __global__ void k(float* out, int at) {
      extern __shared__ __align__(1024) unsigned char tile[];
      float d[2][4];
      hopper::multiply<__half>(d, hopper::operand<128>(tile), hopper::operand<128>(tile + at), false);
      hopper::multiply_commit();
      hopper::multiply_wait<0>();
      out[threadIdx.x] = d[0][0];
    })",
           "k");
  std::vector<float> out(128);
  CHECK(words_of([&] { k.in_clusters({1}, {1}, {128}, 9216, out.data(), 7168); }).empty());
  CHECK_THAT(words_of([&] { k.in_clusters({1}, {1}, {128}, 9216, out.data(), 8192); }),
             contains("B of 16 columns reaches beyond the 9216 bytes"));
  CHECK_THAT(words_of([&] { k.in_clusters({1}, {1}, {128}, 4096, out.data(), 0); }),
             contains("A of 64 rows reaches beyond the 4096 bytes"));
  Kernel part(std::string(kHopperHead) + R"(
    __global__ void k(float* out) {
      extern __shared__ __align__(1024) unsigned char tile[];
      float d[2][4];
      if (threadIdx.x >= 96) hopper::named_sync(1, 64);
      hopper::multiply<__half>(d, hopper::operand<128>(tile), hopper::operand<128>(tile), false);
      hopper::multiply_commit();
      hopper::multiply_wait<0>();
      out[threadIdx.x] = d[0][0];
    })",
              "k");
  CHECK_THAT(words_of([&] { part.in_clusters({1}, {1}, {128}, 8192, out.data()); }),
             contains("96 at") && contains("products of its warpgroup"));
}

TEST_CASE("8x8 matrices between registers and shared memory, also transposed",
          "[host][warpgroup]") {
  // Element (r, c) of matrix q is held by lane 4 r + c / 2.
  const auto element = [](unsigned q, unsigned r, unsigned c) {
    return static_cast<std::uint16_t>(q * 1000 + (4 * r + c / 2) * 2 + c % 2);
  };
  for (const auto& [count, store, load] : {std::tuple{4u, false, false},
                                           {4u, false, true},
                                           {4u, true, false},
                                           {4u, true, true},
                                           {2u, false, false},
                                           {2u, true, false}}) {
    CAPTURE(count, store, load);
    const auto flag = [](bool b) { return std::string(b ? "true" : "false"); };
    Kernel matrices(std::string(kHopperHead) + R"(
    template <int kCount, bool kStore, bool kLoad> __global__ void k(unsigned short* out,
                                                                     unsigned* held) {
      __shared__ __align__(16) unsigned short cells[kCount * 64];
      const int lane = threadIdx.x % 32;
      unsigned m[kCount];
      for (int q = 0; q < kCount; ++q) m[q] = (q * 1000 + lane * 2) | (q * 1000 + lane * 2 + 1) << 16;
      unsigned short* row = cells + lane % (8 * kCount) * 8;
      hopper::store_matrices<kStore>(row, m);
      __syncwarp();
      for (int i = lane; i < kCount * 64; i += 32) out[i] = cells[i];
      if constexpr (kCount == 4) {
        unsigned back[kCount];
        hopper::load_matrices<kLoad>(back, row);
        for (int q = 0; q < 8; ++q) row[q] = 0;  // others have read it by now
        for (int q = 0; q < kCount; ++q) held[q * 32 + lane] = back[q];
      }
      held[4 * 32 + lane] = hopper::transpose_matrix(m[0]);
    })",
                    "k<" + std::to_string(count) + ", " + flag(store) + ", " + flag(load) + ">");
    std::vector<std::uint16_t> out(256);
    std::vector<unsigned> held(160);
    matrices.in_clusters({1}, {1}, {32}, 0, out.data(), held.data());
    for (unsigned q = 0; q < count; ++q)
      for (unsigned r = 0; r < 8; ++r)
        for (unsigned c = 0; c < 8; ++c) {
          const std::uint16_t value = store ? element(q, c, r) : element(q, r, c);
          CHECK(out[q * 64 + r * 8 + c] == value);
          if (count < 4) continue;
          const unsigned lane = load ? 4 * c + r / 2 : 4 * r + c / 2, half = load ? r % 2 : c % 2;
          CHECK((held[q * 32 + lane] >> (16 * half) & 0xffff) == value);
        }
    for (unsigned r = 0; r < 8; ++r)
      for (unsigned c = 0; c < 8; ++c)
        CHECK((held[128 + 4 * c + r / 2] >> (16 * (r % 2)) & 0xffff) == element(0, r, c));
  }
}

TEST_CASE("as many 8x8 matrices are loaded and stored as on a GPU", "[host][warpgroup]") {
  const auto words = [](const std::string& what, int count) {
    const std::string array = "unsigned m[" + std::to_string(count) + "] = {};";
    return refusal(source_of(std::string(kHopperHead) + "__global__ void k(unsigned short* row) {" +
                                 array + "hopper::" + what + "; }",
                             "k"));
  };
  CHECK_THAT(words("load_matrices(m, row)", 2), contains("four matrices are loaded"));
  CHECK_THAT(words("store_matrices(row, m)", 3), contains("two or four matrices are stored"));
}

TEST_CASE("a product of matrices with TMA, a producer warp and clusters", "[host][warpgroup]") {
  // C = A B^T. One producer warp, two warpgroups of 64 rows each; blocks of a cluster share B.
  const std::string text = std::string(kHopperHead) + R"(
    constexpr int kStages = 3, kColumns = 64, kStageBytes = (128 + kColumns) * 128;
    template <int kShare> __global__ void __launch_bounds__(384, 1) gemm(
        const __grid_constant__ hopper::TensorMap a, const __grid_constant__ hopper::TensorMap b,
        const __grid_constant__ hopper::TensorMap c, int m, int n, int k) {
      extern __shared__ __align__(1024) unsigned char stages[];
      unsigned char* const staging = stages + kStages * kStageBytes;  // 64 x 64 per warpgroup
      auto* const full = reinterpret_cast<hopper::Barrier*>(staging + 2 * 64 * 128);
      auto* const empty = full + kStages;
      const int warpgroup = threadIdx.x / 128, rank = hopper::cluster_rank();
      if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) { full[s].init(1); empty[s].init(2 * kShare); }
        hopper::publish_barriers();
      }
      hopper::cluster_sync();
      const int slices = (k + 63) / 64, rows = (m + 127) / 128, columns = (n + kColumns - 1) / kColumns;
      const int row_groups = (rows + kShare - 1) / kShare;
      int stage = 0;
      unsigned parity = 0;
      for (int tile = blockIdx.x / kShare; tile < row_groups * columns; tile += gridDim.x / kShare) {
        const int row = (tile % row_groups * kShare + rank) * 128, column = tile / row_groups * kColumns;
        if (warpgroup == 0) {
          if (tile == blockIdx.x / kShare) hopper::fewer_registers<40>();
          if (threadIdx.x / 32 == 0 && hopper::elect()) {
            for (int slice = 0; slice < slices; ++slice) {
              empty[stage].wait(parity ^ 1);
              full[stage].arrive_expect(kStageBytes);
              unsigned char* const to = stages + stage * kStageBytes;
              hopper::load_tile(to, a, full[stage], slice * 64, row);
              constexpr int kPart = kColumns / kShare;
              hopper::load_tile_to((1u << kShare) - 1, to + 128 * 128 + rank * kPart * 128, b,
                                   full[stage], slice * 64, column + rank * kPart);
              if (++stage == kStages) stage = 0, parity ^= 1;
            }
          }
        } else {
          float sums[kColumns / 8][4];
          for (int slice = 0; slice < slices; ++slice) {
            full[stage].wait(parity);
            const unsigned char* const from = stages + stage * kStageBytes;
            const auto of_a = hopper::operand<128>(from + (warpgroup - 1) * 64 * 128);
            const auto of_b = hopper::operand<128>(from + 128 * 128);
            hopper::multiply_fence();
            for (int step = 0; step < 4; ++step)
              hopper::multiply<__nv_bfloat16>(sums, hopper::advance(of_a, 32 * step),
                                              hopper::advance(of_b, 32 * step), slice + step > 0);
            hopper::multiply_commit();
            hopper::multiply_wait<0>();
            if (threadIdx.x % 128 < kShare) empty[stage].arrive_at(threadIdx.x % 128);
            if (++stage == kStages) stage = 0, parity ^= 1;
          }
          const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, q = lane / 8;
          unsigned char* const mine = staging + (warpgroup - 1) * 64 * 128;
          if (threadIdx.x % 128 == 0) hopper::wait_stores_read<0>();
          hopper::named_sync(warpgroup, 128);
          for (int j = 0; j < kColumns / 8; j += 2) {
            unsigned matrices[4];
            for (int i = 0; i < 4; ++i) {
              const float* s = &sums[j + i / 2][i % 2 * 2];
              matrices[i] = __bfloat16_as_ushort(__float2bfloat16(s[0])) |
                            unsigned(__bfloat16_as_ushort(__float2bfloat16(s[1]))) << 16;
            }
            const int r = warp * 16 + q % 2 * 8 + lane % 8;
            const int place = r * 128 + (j + q / 2) * 16;
            hopper::store_matrices(mine + (place ^ ((place >> 7 & 7) << 4)), matrices);
          }
          hopper::publish_shared();
          hopper::named_sync(warpgroup, 128);
          if (threadIdx.x % 128 == 0) {
            hopper::store_tile(c, mine, column, row + (warpgroup - 1) * 64);
            hopper::commit_stores();
          }
        }
      }
      if (warpgroup > 0 && threadIdx.x % 128 == 0) hopper::wait_stores<0>();
      hopper::cluster_sync();
    })";
  constexpr std::size_t kShared = 3 * 192 * 128 + 2 * 64 * 128 + 6 * 8;
  for (unsigned share : {1u, 2u}) {
    Kernel gemm(text, "gemm<" + std::to_string(share) + ">");
    for (const auto& [m, n, k, blocks] :
         {std::tuple{128, 64, 64, 2}, {300, 200, 328, 4}, {257, 72, 8, 2}, {520, 136, 520, 2}}) {
      CAPTURE(share, m, n, k);
      const auto a = random_bf16(std::size_t(m) * k, 3), b = random_bf16(std::size_t(n) * k, 4);
      std::vector<std::uint16_t> c(std::size_t(m) * n, 0xffff);
      const auto map = [&](const void* array, int columns, int rows, unsigned box_rows) {
        return tensor_map(array, HostElement::bf16, {std::uint64_t(columns), std::uint64_t(rows)},
                          {64, box_rows}, 128);
      };
      gemm.in_clusters({share}, {unsigned(blocks)}, {384}, kShared, map(a.data(), k, m, 128),
                       map(b.data(), k, n, 64 / share), map(c.data(), n, m, 64), m, n, k);
      unsigned wrong = 0;
      for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
          float sum = 0;
          for (int l = 0; l < k; ++l)
            sum += from_bf16(a[std::size_t(i) * k + l]) * from_bf16(b[std::size_t(j) * k + l]);
          wrong += c[std::size_t(i) * n + j] != bf16(sum);
        }
      CHECK(wrong == 0);
    }
  }
}
