// A sum over an array whose blocks leave partial sums in a workspace. In some configs the last
// block adds them up, in others a second launch does; the tuner finds out which is faster.
#include <cmath>
#include <cstdio>

#include <kiln/kiln.hpp>

constexpr const char* kSource = R"(
#include "kiln/workspace.cuh"
enum class Finish { last_block, step };
struct SplitSum {
  int threads, blocks;
  Finish finish;
};

// The value of thread 0 counts.
template <int threads>
__device__ float block_sum(float value) {
  __shared__ float part[threads];
  part[threadIdx.x] = value;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  return part[0];
}

template <SplitSum c>
__global__ void __launch_bounds__(c.threads)
split_sum(float* out, const float* in, int n, kiln::Workspace workspace) {
  float* const partial = static_cast<float*>(workspace.scratch);
  float sum = 0;
  for (int i = blockIdx.x * c.threads + threadIdx.x; i < n; i += c.blocks * c.threads) sum += in[i];
  sum = block_sum<c.threads>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
  if (c.finish == Finish::step || threadIdx.x != 0) return;
  __threadfence();  // the partial sum is there before the count says so
  if (atomicAdd(workspace.semaphores, 1u) != c.blocks - 1) return;
  __threadfence();
  sum = 0;
  for (int i = 0; i < c.blocks; ++i) sum += partial[i];
  *out = sum;
  workspace.semaphores[0] = 0;  // as the next launch must find it
}

template <SplitSum c>
__global__ void __launch_bounds__(c.threads)
add_partial(float* out, const float*, int, kiln::Workspace workspace) {
  const float* const partial = static_cast<const float*>(workspace.scratch);
  float sum = 0;
  for (int i = threadIdx.x; i < c.blocks; i += c.threads) sum += partial[i];
  sum = block_sum<c.threads>(sum);
  if (threadIdx.x == 0) *out = sum;
})";

enum class Finish { last_block, step };
struct SplitSum {
  int threads, blocks;
  Finish finish;
};
KILN_CONFIG(SplitSum, threads, blocks, finish)

struct Line {
  int n;
};
KILN_PROBLEM(Line, n)

constexpr auto space = kiln::Space<SplitSum, Line>{{128, 64, Finish::last_block}}
                           .values(&SplitSum::threads, {128, 256})
                           .values(&SplitSum::blocks, {16, 64, 256})
                           .values(&SplitSum::finish, {Finish::last_block, Finish::step})
                           .checked();

int main() {
  const kiln::Kernel<SplitSum, Line, void(float*, const float*, int)> split_sum{
      .name = "split_sum",
      .source = {.text = kSource},
      .entry = "split_sum",
      .config_type = "SplitSum",
      .space = space,
      .launch =
          [](const SplitSum& c, const Line&) {
            return kiln::Launch{{unsigned(c.blocks)}, {unsigned(c.threads)}};
          },
      .workspace = {.size =
                        [](const SplitSum& c, const Line&, const kiln::DeviceLimits&) {
                          return kiln::WorkspaceSize{.bytes = c.blocks * sizeof(float),
                                                     .semaphores = 1};
                        }},
      .steps = {{.entry = "add_partial",
                 .launch = [](const SplitSum& c,
                              const Line&) { return kiln::Launch{{1}, {unsigned(c.threads)}}; },
                 .only_if = [](const SplitSum& c) { return c.finish == Finish::step; }}},
      .problem = [](float*, const float*, int n) { return Line{n}; },
      .workload =
          [](const Line& p, kiln::Workload& w) {
            w.output<float>(1).input<float>(std::size_t(p.n)).scalar(p.n);
          },
      .reference =
          [](float* out, const float* in, int n) {
            double sum = 0;
            for (int i = 0; i < n; ++i) sum += in[i];
            *out = float(sum);
          },
      .tolerance = {.relative = 1e-4, .absolute = 1e-1}};
  kiln::Runtime runtime;
  const auto tuned = runtime.tuned(split_sum);
  const Line problem{.n = 1 << 20};
  const kiln::TuneResult result = tuned.tune(problem);
  std::printf("%s\n", result.describe(result.winner()).c_str());

  const auto in = runtime.array(std::vector<float>(std::size_t(problem.n), 0.5f));
  const auto out = runtime.array<float>(1);
  const kiln::Stream stream{};
  const auto bound = tuned.at(problem);
  bound.reserve_workspace(stream);  // from here on the launch may be captured
  bound(stream, out.data(), static_cast<const float*>(in.data()), problem.n);
  runtime.synchronize(stream);
  return out.download().front() == float(problem.n / 2) ? 0 : 1;
}
