// Figures of the host target: compile times, and how fast typical kernels run. Prints one line
// each.
//
//   host_bench [name]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include <time.h>

#include "codegen/llvm_plugin.hpp"
#include "runtime/device/host/host_module.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using kiln::codegen::Binary;
using kiln::runtime::Extent;
using kiln::runtime::HostModule;

double seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// Processor time of all threads: what a busy machine leaves comparable.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Best {
  double wall = 1e9, processor = 1e9;
};

Best best_of(int repeats, const std::function<void()>& work) {
  Best best;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    const double processor = processor_seconds();
    work();
    best.wall = std::min(best.wall, seconds(start));
    best.processor = std::min(best.processor, processor_seconds() - processor);
  }
  return best;
}

class Bench {
 public:
  explicit Bench(std::string wanted) : wanted_(std::move(wanted)) {}

  template <class... P>
  void run(const char* name, const char* unit, double work, const std::string& text,
           const std::string& entry, Extent grid, Extent block, std::size_t shared,
           P... parameters) {
    if (!wanted_.empty() && wanted_ != name) return;
    kiln::codegen::Source source;
    source.text = text;
    source.path = std::string(name) + ".cu";
    source.entry = entry;
    source.label = entry;
    Binary binary;
    std::string log;
    const Best compiled = best_of(3, [&] {
      auto result = compiler_->compile(source, kiln::Target::this_host());
      if (auto* failure = std::get_if<kiln::CompileFailure>(&result)) log = failure->log;
      if (auto* good = std::get_if<Binary>(&result)) binary = std::move(*good);
    });
    if (!log.empty()) {
      std::printf("%s: %s\n", name, log.c_str());
      return;
    }
    auto start = Clock::now();
    const HostModule module = HostModule::load(binary, workers_);
    const double load_us = 1e6 * seconds(start);
    void* arguments[] = {static_cast<void*>(&parameters)..., nullptr};
    const Best ran = best_of(7, [&] { module.launch(grid, block, shared, arguments); });
    std::printf(
        "%-20s compile %6.1f ms (%6.1f cpu)  load %4.0f us  %6zu bytes  run %9.1f us  %7.2f %s, "
        "%7.2f per core\n",
        name, 1e3 * compiled.wall, 1e3 * compiled.processor, load_us, binary.code.size(),
        1e6 * ran.wall, work / ran.wall * 1e-9, unit, work / ran.processor * 1e-9);
    std::fflush(stdout);
  }

 private:
  std::string wanted_;
  std::unique_ptr<kiln::codegen::Compiler> compiler_ = kiln::codegen::make_host_compiler();
  std::shared_ptr<kiln::runtime::HostWorkers> workers_ = kiln::runtime::HostWorkers::create();
};

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc > 1 ? argv[1] : "");
  const int n = 1 << 23;
  std::vector<float> a(n, 1.0f), b(n, 2.0f), c(n);

  bench.run("empty", "launches/ns", 1, "__global__ void k() {}", "k", {1}, {1}, 0);
  bench.run("vector_add", "GB/s", 12.0 * n, R"(
    template <int items> __global__ void __launch_bounds__(256) k(float* out, const float* a, const float* b, int n) {
      for (int i = 0; i < items; ++i) {
        const int at = (blockIdx.x * items + i) * blockDim.x + threadIdx.x;
        if (at < n) out[at] = a[at] + b[at];
      }
    })",
            "k<4>", {unsigned(n / 1024)}, {256}, 0, c.data(), a.data(), b.data(), n);
  bench.run("vector_add_guarded", "GB/s", 12.0 * n, R"(
    __global__ void k(float* out, const float* a, const float* b, int n) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) out[i] = a[i] + b[i];
    })",
            "k", {unsigned(n / 256)}, {256}, 0, c.data(), a.data(), b.data(), n);
  const int rows = 4096, columns = 2048;
  bench.run("rmsnorm", "GB/s", 8.0 * rows * columns, R"(
    template <int block> __global__ void __launch_bounds__(block) k(float* out, const float* in, const float* w, int columns) {
      __shared__ float parts[block / 32];
      const float* x = in + (size_t)blockIdx.x * columns;
      float sum = 0;
      for (int i = threadIdx.x; i < columns; i += block) sum += x[i] * x[i];
      for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
      __syncthreads();
      float total = 0;
      for (int i = 0; i < block / 32; ++i) total += parts[i];
      const float scale = rsqrtf(total / columns + 1e-6f);
      for (int i = threadIdx.x; i < columns; i += block) out[(size_t)blockIdx.x * columns + i] = x[i] * scale * w[i];
    })",
            "k<256>", {unsigned(rows)}, {256}, 0, c.data(), a.data(), b.data(), columns);
  bench.run("softmax", "GB/s", 8.0 * rows * columns, R"(
    template <int block> __global__ void __launch_bounds__(block) k(float* out, const float* in, int columns) {
      __shared__ float parts[block];
      const float* x = in + (size_t)blockIdx.x * columns;
      float top = -1e30f;
      for (int i = threadIdx.x; i < columns; i += block) top = fmaxf(top, x[i]);
      parts[threadIdx.x] = top;
      __syncthreads();
      for (int h = block / 2; h > 0; h /= 2) {
        if (threadIdx.x < h) parts[threadIdx.x] = fmaxf(parts[threadIdx.x], parts[threadIdx.x + h]);
        __syncthreads();
      }
      top = parts[0];
      __syncthreads();
      float sum = 0;
      for (int i = threadIdx.x; i < columns; i += block) sum += __expf(x[i] - top);
      parts[threadIdx.x] = sum;
      __syncthreads();
      for (int h = block / 2; h > 0; h /= 2) {
        if (threadIdx.x < h) parts[threadIdx.x] += parts[threadIdx.x + h];
        __syncthreads();
      }
      const float scale = 1.0f / parts[0];
      for (int i = threadIdx.x; i < columns; i += block) out[(size_t)blockIdx.x * columns + i] = __expf(x[i] - top) * scale;
    })",
            "k<256>", {unsigned(rows)}, {256}, 0, c.data(), a.data(), columns);
  bench.run("block_sum", "GB/s", 4.0 * n, R"(
    __global__ void __launch_bounds__(256) k(float* out, const float* in, int n) {
      __shared__ float s[256];
      const int i = blockIdx.x * 256 + threadIdx.x;
      s[threadIdx.x] = i < n ? in[i] : 0.0f;
      __syncthreads();
      for (int h = 128; h > 0; h /= 2) {
        if (threadIdx.x < h) s[threadIdx.x] += s[threadIdx.x + h];
        __syncthreads();
      }
      if (threadIdx.x == 0) out[blockIdx.x] = s[0];
    })",
            "k", {unsigned(n / 256)}, {256}, 0, c.data(), a.data(), n);
  bench.run("transpose", "GB/s", 8.0 * 2048 * 4096, R"(
    __global__ void __launch_bounds__(256) k(float* out, const float* in, int rows, int columns) {
      __shared__ float tile[32][33];
      int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
      for (int i = 0; i < 32; i += 8) if (x < columns && y + i < rows) tile[threadIdx.y + i][threadIdx.x] = in[(size_t)(y + i) * columns + x];
      __syncthreads();
      x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
      for (int i = 0; i < 32; i += 8) if (x < rows && y + i < columns) out[(size_t)(y + i) * rows + x] = tile[threadIdx.x][threadIdx.y + i];
    })",
            "k", {2048 / 32, 4096 / 32}, {32, 8}, 0, c.data(), a.data(), 4096, 2048);
  const int m = 512;
  bench.run("gemm_naive", "GFLOP/s", 2.0 * m * m * m, R"(
    __global__ void __launch_bounds__(256) k(float* c, const float* a, const float* b, int n) {
      const int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
      if (col >= n || row >= n) return;
      float sum = 0;
      for (int i = 0; i < n; ++i) sum += a[row * n + i] * b[i * n + col];
      c[row * n + col] = sum;
    })",
            "k", {unsigned(m / 32), unsigned(m / 8)}, {32, 8}, 0, c.data(), a.data(), b.data(), m);
  bench.run("gemm_shared", "GFLOP/s", 2.0 * m * m * m, R"(
    template <int tile> __global__ void __launch_bounds__(tile * tile) k(float* c, const float* a, const float* b, int n) {
      __shared__ float as[tile][tile], bs[tile][tile];
      const int tx = threadIdx.x, ty = threadIdx.y, col = blockIdx.x * tile + tx, row = blockIdx.y * tile + ty;
      float sum = 0;
      for (int t = 0; t < n; t += tile) {
        as[ty][tx] = a[row * n + t + tx];
        bs[ty][tx] = b[(t + ty) * n + col];
        __syncthreads();
        for (int i = 0; i < tile; ++i) sum += as[ty][i] * bs[i][tx];
        __syncthreads();
      }
      c[row * n + col] = sum;
    })",
            "k<16>", {unsigned(m / 16), unsigned(m / 16)}, {16, 16}, 0, c.data(), a.data(),
            b.data(), m);
  bench.run("gemm_register_tiles", "GFLOP/s", 2.0 * m * m * m, R"(
    template <int bm, int bn, int bk, int tm, int tn>
    __global__ void __launch_bounds__((bm / tm) * (bn / tn)) k(float* c, const float* a, const float* b, int n) {
      __shared__ float as[bk][bm], bs[bk][bn];
      constexpr int tx_count = bn / tn, threads = (bm / tm) * tx_count;
      const int t = threadIdx.x, tx = t % tx_count, ty = t / tx_count;
      const int row0 = blockIdx.y * bm, col0 = blockIdx.x * bn;
      float acc[tm][tn] = {};
      for (int k0 = 0; k0 < n; k0 += bk) {
        for (int i = t; i < bm * bk; i += threads) as[i % bk][i / bk] = a[(row0 + i / bk) * n + k0 + i % bk];
        for (int i = t; i < bn * bk; i += threads) bs[i / bn][i % bn] = b[(k0 + i / bn) * n + col0 + i % bn];
        __syncthreads();
        for (int k = 0; k < bk; ++k) {
    #pragma unroll
          for (int i = 0; i < tm; ++i)
    #pragma unroll
            for (int j = 0; j < tn; ++j) acc[i][j] += as[k][ty * tm + i] * bs[k][tx + j * tx_count];
        }
        __syncthreads();
      }
      for (int i = 0; i < tm; ++i) for (int j = 0; j < tn; ++j) c[(row0 + ty * tm + i) * n + col0 + tx + j * tx_count] = acc[i][j];
    })",
            "k<64, 64, 16, 4, 4>", {unsigned(m / 64), unsigned(m / 64)}, {256}, 0, c.data(),
            a.data(), b.data(), m);
  bench.run("bf16_add", "GB/s", 6.0 * n, R"(
    #include <cuda_bf16.h>
    __global__ void __launch_bounds__(256) k(__nv_bfloat16* out, const __nv_bfloat16* a, const __nv_bfloat16* b, int n) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) out[i] = a[i] + b[i];
    })",
            "k", {unsigned(n / 256)}, {256}, 0, c.data(), a.data(), b.data(), n);
}
