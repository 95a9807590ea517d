// A kernel for Hopper from start to end: each row of a matrix is divided by its root mean square.
// The blocks of a cluster share a row. Each copies its part by a tensor map, learns the others'
// sums through their shared memory, and stores its part by a map. On a CPU the same source runs
// unchanged.
#include <cmath>
#include <cstdio>

#include <kiln/kiln.hpp>

constexpr const char* kSource = R"(
#include "kiln/hopper.cuh"
using namespace kiln::hopper;
struct Normalize {
  int threads, cluster, boxes;
  static constexpr int kBox = 256;  // elements that one copy moves: the most there may be
  constexpr int part() const { return boxes * kBox; }
};

template <Normalize c>
__global__ void __launch_bounds__(c.threads) normalize(
    const __grid_constant__ TensorMap out, const __grid_constant__ TensorMap in, int, int columns) {
  extern __shared__ __align__(128) float part[];  // of the row: this block's
  __shared__ Barrier arrived;
  __shared__ float own, sums[c.cluster];
  const int row = blockIdx.x / c.cluster, rank = cluster_rank();
  if (threadIdx.x == 0) {
    own = 0;
    arrived.init(1);
    publish_barriers();
    arrived.arrive_expect(c.part() * sizeof(float));
    for (int i = 0; i < c.boxes; ++i)  // what lies outside of the matrix arrives as zeros
      load_tile(part + i * c.kBox, in, arrived, rank * c.part() + i * c.kBox, row);
  }
  cluster_sync();  // the barrier is made, and the other blocks have begun: their memory may be used
  arrived.wait(0);
  float sum = 0;
  for (int i = threadIdx.x; i < c.part(); i += c.threads) sum += part[i] * part[i];
  atomicAdd(&own, sum);
  __syncthreads();
  if (threadIdx.x < c.cluster) *at_block(&sums[rank], threadIdx.x) = own;
  cluster_sync();  // every block has everybody's sum
  sum = 0;
  for (int i = 0; i < c.cluster; ++i) sum += sums[i];
  const float scale = rsqrtf(sum / columns + 1e-6f);
  for (int i = threadIdx.x; i < c.part(); i += c.threads) part[i] *= scale;
  publish_shared();  // each thread, so that the copies see what it wrote
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 0; i < c.boxes; ++i)  // what lies outside is not stored
      store_tile(out, part + i * c.kBox, rank * c.part() + i * c.kBox, row);
    commit_stores();
    wait_stores_read<0>();
  }
})";

struct Normalize {
  int threads, cluster, boxes;  // a block's threads and copies, and blocks that share a row
  constexpr int part() const { return boxes * 256; }
};
KILN_CONFIG(Normalize, threads, cluster, boxes)

struct Matrix {
  int rows, columns;
};
KILN_PROBLEM(Matrix, rows, columns)

constexpr auto space =
    kiln::Space<Normalize, Matrix>{{.threads = 128, .cluster = 2, .boxes = 8}}
        .values(&Normalize::threads, {64, 128, 256})
        .values(&Normalize::cluster, {2, 4, 8})
        .values(&Normalize::boxes, {2, 4, 8, 16, 32})
        .where("a cluster holds a row, and less than two",
               [](const Normalize& c, const Matrix& p, const kiln::DeviceLimits&) {
                 return c.cluster * c.part() >= p.columns && c.cluster * c.part() < 2 * p.columns;
               })
        .checked();

kiln::TensorMap row_map(const Normalize&, const Matrix& p) {
  return kiln::TensorMap::tiled<float>({.size = {p.columns, p.rows}, .box = {256, 1}});
}

int main() {
  const kiln::Kernel<Normalize, Matrix, void(float*, const float*, int, int)> normalize{
      .name = "normalize",
      .source = {.text = kSource},
      .entry = "normalize",
      .config_type = "Normalize",
      .space = space,
      .launch =
          [](const Normalize& c, const Matrix& p) {
            kiln::Launch launch{{unsigned(p.rows * c.cluster)}, {unsigned(c.threads)}};
            launch.shared_bytes = unsigned(c.part() * sizeof(float));
            launch.cluster.x = unsigned(c.cluster);
            return launch;
          },
      .maps = {{.argument = 0, .map = row_map}, {.argument = 1, .map = row_map}},
      .problem = [](float*, const float*, int rows, int columns) { return Matrix{rows, columns}; },
      .workload =
          [](const Matrix& p, kiln::Workload& w) {
            const std::size_t count = std::size_t(p.rows) * std::size_t(p.columns);
            w.output<float>(count).input<float>(count).scalar(p.rows).scalar(p.columns);
          },
      .reference =
          [](float* out, const float* in, int rows, int columns) {
            for (int row = 0; row < rows; ++row, out += columns, in += columns) {
              double sum = 0;
              for (int i = 0; i < columns; ++i) sum += double(in[i]) * in[i];
              for (int i = 0; i < columns; ++i)
                out[i] = float(in[i] / std::sqrt(sum / columns + 1e-6));
            }
          }};
  kiln::Runtime runtime;
  const auto tuned = runtime.tuned(normalize);
  const Matrix problem{.rows = 100, .columns = 3000};
  const kiln::TuneResult result = tuned.tune(problem);
  const kiln::Verification verified = tuned.verify(problem);
  const char* const words = verified.right ? "right" : verified.why.c_str();
  std::printf("%s: %s\n", result.describe(result.winner()).c_str(), words);
  return verified.right ? 0 : 1;
}
