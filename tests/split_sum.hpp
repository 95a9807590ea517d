// A sum over an array in several ways, some of which need a workspace and steps: what the tests of
// both tune and launch.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "kiln/kiln.hpp"

namespace kiln::test {

enum class SumMode {
  plain,     ///< one block, without a workspace
  steps,     ///< partial sums in scratch, which two steps add up
  last,      ///< partial sums in scratch, which the last block adds up, as a semaphore tells
  littered,  ///< the same, but it does not reset the semaphore
  outside    ///< the same, but it writes one partial sum too many
};

inline constexpr const char* kSplitSum = R"(
#include <kiln/workspace.cuh>

enum : int { plain, steps, last, littered, outside };

// A value per thread.
__device__ inline float part(const float* in, int n) {
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
  return sum;
}

template <int blocks, int mode> requires(mode == plain)
__global__ void sum(float* out, const float* in, int n) {
  if (threadIdx.x != 0) return;
  float all = 0;
  for (int i = 0; i < n; ++i) all += in[i];
  *out = all;
}

template <int blocks, int mode> requires(mode != plain)
__global__ void sum(float* out, const float* in, int n, kiln::Workspace workspace) {
  float* const parts = static_cast<float*>(workspace.scratch);
  parts[blockIdx.x * blockDim.x + threadIdx.x] = part(in, n);
  if (mode == steps) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(workspace.semaphores, 1u) != gridDim.x - 1) return;
  __threadfence();
  const int count = gridDim.x * blockDim.x;
  float all = 0;
  for (int i = 0; i < count; ++i) all += parts[i];
  *out = all;
  if (mode == outside) parts[count + blocks] = all;
  if (mode != littered) workspace.semaphores[0] = 0;
}

__device__ int finished;  // of all entries: one module

template <int blocks, int mode>
__global__ void add_threads(float* out, const float* in, int n, kiln::Workspace workspace) {
  float* const parts = static_cast<float*>(workspace.scratch);
  if (threadIdx.x != 0) return;
  float all = 0;
  for (int i = 0; i < 32; ++i) all += parts[blockIdx.x * 32 + i];
  parts[32 * blocks + blockIdx.x] = all;
  finished = 1;
}

template <int blocks, int mode>
__global__ void add_blocks(float* out, const float* in, int n, kiln::Workspace workspace) {
  const float* const parts = static_cast<const float*>(workspace.scratch) + 32 * blocks;
  float all = 0;
  for (int i = 0; i < blocks; ++i) all += parts[i];
  *out = finished ? all : -1;
}
)";

/// Problem: n. Parameters: blocks, mode. Workspaces grow with n.
inline kiln::KernelDefinition split_sum(std::vector<std::int64_t> modes = {0, 1, 2}) {
  using Span = std::span<const std::int64_t>;
  kiln::KernelDefinition k;
  k.name = "split_sum";
  k.source.text = kSplitSum;
  k.entry = "sum";
  k.arguments = {"float*", "const float*", "int"};
  k.space.parameter("blocks", {4}, 4);
  const std::int64_t first = modes.front();
  k.space.parameter("mode", std::move(modes), first);
  k.problem_fields = {"n"};
  const auto mode = [](Span config) { return static_cast<SumMode>(config[1]); };
  const auto in_steps = [mode](Span config) { return mode(config) == SumMode::steps; };
  k.launch = [mode](Span c, Span p) {
    const bool alone = mode(c) == SumMode::plain;
    return kiln::Launch{{p[0] == 0 ? 0 : alone ? 1 : static_cast<unsigned>(c[0])}, {32}};
  };
  k.workspace = {.size =
                     [mode](Span c, Span p, const kiln::DeviceLimits&) {
                       const auto blocks = static_cast<std::size_t>(c[0]);
                       const auto n = static_cast<std::size_t>(p[0]);
                       return kiln::WorkspaceSize{
                           .bytes = std::max(n, 33 * blocks) * sizeof(float),
                           .semaphores = mode(c) == SumMode::steps ? std::size_t{0} : 1};
                     },
                 .only_if = [mode](Span c) { return mode(c) != SumMode::plain; }};
  k.steps = {
      {.entry = "add_threads",
       .launch = [](Span c, Span) { return kiln::Launch{{static_cast<unsigned>(c[0])}, {32}}; },
       .only_if = in_steps},
      {.entry = "add_blocks",
       .launch = [](Span, Span) { return kiln::Launch{{1}, {1}}; },
       .only_if = in_steps}};
  k.workload = [](Span p, kiln::Workload& w) {
    const auto n = static_cast<std::size_t>(p[0]);
    w.output<float>(1).input<float>(n).scalar<int>(static_cast<int>(n));
  };
  k.reference = [](Span, std::span<void* const> args) {
    const auto* in = static_cast<const float*>(args[1]);
    *static_cast<float*>(args[0]) = std::accumulate(in, in + *static_cast<int*>(args[2]), 0.0f);
  };
  k.tolerance = {.relative = 1e-3, .absolute = 1e-2};
  return k;
}

inline kiln::Values with_mode(SumMode mode) { return {4, static_cast<std::int64_t>(mode)}; }

/// 1 + 2 + ... + n for n below 5,000 without a rounding error.
inline std::vector<float> counting(std::size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}
inline float sum_of_counting(std::size_t n) { return static_cast<float>(n * (n + 1) / 2); }

/// What a handle computes of 1, ..., n.
inline float launched_sum(const kiln::Runtime& runtime, const kiln::DynamicTuned& handle,
                          std::size_t n, kiln::Stream stream = {}) {
  auto in = runtime.array(counting(n));
  auto out = runtime.array(std::vector<float>{-7});
  handle(stream, {static_cast<std::int64_t>(n)}, out.data(), static_cast<const float*>(in.data()),
         static_cast<int>(n));
  runtime.synchronize(stream);
  return out.download().front();
}

/// Allocates by malloc, counts, and refuses what is over a limit.
struct CountingPool {
  std::mutex mutex;
  std::map<void*, std::size_t> live;
  std::size_t most = SIZE_MAX, allocations = 0;
  std::vector<std::string> misuse;

  kiln::Allocator allocator() {
    return {.allocate = [this](std::size_t bytes) -> void* {
              const std::lock_guard lock(mutex);
              if (bytes > most) return nullptr;
              void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
              live[memory] = bytes;
              ++allocations;
              return memory;
            },
            .release =
                [this](void* memory, std::size_t bytes) {
                  const std::lock_guard lock(mutex);
                  const auto found = live.find(memory);
                  if (found == live.end() || found->second != bytes)
                    misuse.push_back("released what was not allocated, or another size of it");
                  else
                    live.erase(found);
                  std::free(memory);
                }};
  }
};

}  // namespace kiln::test
