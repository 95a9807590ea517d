// Host half of roofline.hpp, and the measurement made of it.
#include "kiln/roofline.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include <tbb/parallel_for.h>

#include "kiln/paths.hpp"
#include "kiln/runtime.hpp"
#include "templates/roofline/roofline_kernels.hpp"

namespace kiln::templates {

namespace {

constexpr bool grid_fits(long long work, int tile, const DeviceLimits& d) {
  return (work + tile - 1) / tile <= d.max_grid.x;
}

unsigned blocks(long long work, int tile) {
  return static_cast<unsigned>(std::min<long long>((work + tile - 1) / tile, ~0u));
}

constexpr auto kCopySpace =
    Space<RooflineCopy, CopyProblem>{{.block = 512, .items = 4, .vector = 4, .streaming = false}}
        .default_on(Target::Kind::host,
                    {.block = 128, .items = 4, .vector = 16, .streaming = false})
        .values(&RooflineCopy::block, {128, 512})
        .values(&RooflineCopy::items, {1, 4, 16})
        .values_on(Target::Kind::cuda, &RooflineCopy::vector, {4})   // 16 bytes per access
        .values_on(Target::Kind::host, &RooflineCopy::vector, {16})  // 64
        .values(&RooflineCopy::streaming, {false, true})
        .where("the grid fits the device",
               [](const RooflineCopy& c, const CopyProblem& p, const DeviceLimits& d) {
                 return grid_fits(p.elements, c.tile(), d);
               })
        .checked();

constexpr auto kFmaSpace =
    Space<RooflineFma, FmaProblem>{{.block = 256, .chains = 8, .vector = 1}}
        .default_on(Target::Kind::host, {.block = 64, .chains = 8, .vector = 16})
        .values(&RooflineFma::block, {64, 128, 256, 512})
        .values_on(Target::Kind::host, &RooflineFma::block, {64, 128})  // more change nothing
        .values(&RooflineFma::chains, {8, 16})
        // A GPU's threads step one float at a time, the host's a register full.
        .values_on(Target::Kind::cuda, &RooflineFma::vector, {1})
        .values_on(Target::Kind::host, &RooflineFma::vector, {8, 16})
        .where("the grid fits the device",
               [](const RooflineFma& c, const FmaProblem& p, const DeviceLimits& d) {
                 return grid_fits(p.elements, c.tile(), d);
               })
        .checked();

constexpr auto kMmaSpace =
    Space<RooflineMma, MmaProblem>{{.block = 256, .tiles = 8}}
        .values(&RooflineMma::block, {128, 256, 512})
        .values(&RooflineMma::tiles, {4, 8, 16})
        .where("the grid fits the device",
               [](const RooflineMma& c, const MmaProblem& p, const DeviceLimits& d) {
                 return grid_fits(p.tiles, c.tile(), d);
               })
        .checked();

void fma_reference(float* out, const float* in, long long elements, int steps) {
  // x -> a x + b, `steps` times, in closed form.
  const double a = kFmaFactor, b = kFmaSummand, limit = b / (1 - a), scale = std::pow(a, steps);
  tbb::parallel_for(0LL, elements, [=](long long i) {
    out[i] = static_cast<float>(limit + (static_cast<double>(in[i]) - limit) * scale);
  });
}

void mma_reference(float* out, const bfloat16* a, const bfloat16* b, long long tiles, int steps) {
  for (int place = 0; place < 128; ++place) {
    const int lane = place / 4, e = place % 4;
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    double sum = 0;
    for (int k = 0; k < 16; ++k)
      sum += static_cast<double>(static_cast<float>(a[row * 16 + k])) *
             static_cast<double>(static_cast<float>(b[column * 16 + k]));
    for (long long t = 0; t < tiles; ++t) out[t * 128 + place] = static_cast<float>(sum * steps);
  }
}

template <class Kernel>
TuneResult measured(const Runtime& runtime, const Kernel& kernel,
                    const typename Kernel::ProblemType& problem, const TuneOptions& from) {
  TuneOptions options;
  options.strategy = "exhaustive";
  options.progress = from.progress;
  options.stop = from.stop;
  options.retune = from.retune;
  return runtime.tuned(kernel).tune(problem, options);
}

/// Per second; 0 when it could not be measured.
double rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

/// What the device can do at best: disturbances only ever add time.
double fastest(const TuneResult& result) {
  const Candidate& winner = result.winner();
  return winner.samples.empty() ? winner.seconds
                                : std::min(winner.seconds, *std::min_element(winner.samples.begin(),
                                                                             winner.samples.end()));
}

}  // namespace

CopyKernel copy_kernel() {
  return {.name = "roofline_copy",
          .source = {.file = templates_dir() / "roofline/roofline.cuh"},
          .entry = "kiln::templates::roofline_copy",
          .config_type = "kiln::templates::RooflineCopy",
          .space = kCopySpace,
          .launch =
              [](const RooflineCopy& c, const CopyProblem& p) {
                return Launch{{blocks(p.elements, c.tile())}, {static_cast<unsigned>(c.block)}, 0};
              },
          .problem = [](float*, const float*, long long n) { return CopyProblem{n}; },
          .workload =
              [](const CopyProblem& p, Workload& w) {
                const auto n = static_cast<std::size_t>(p.elements);
                w.output<float>(n).input<float>(n).scalar(p.elements);
              },
          .reference = [](float* out, const float* in, long long n) { std::copy(in, in + n, out); },
          .tolerance = {.relative = 0, .absolute = 0},
          .bytes =
              [](const CopyProblem& p) {
                return 2.0 * sizeof(float) * static_cast<double>(p.elements);
              }};
}

FmaKernel fma_kernel() {
  return {
      .name = "roofline_fma",
      .source = {.file = templates_dir() / "roofline/roofline.cuh"},
      .entry = "kiln::templates::roofline_fma",
      .config_type = "kiln::templates::RooflineFma",
      .space = kFmaSpace,
      .launch =
          [](const RooflineFma& c, const FmaProblem& p) {
            return Launch{{blocks(p.elements, c.tile())}, {static_cast<unsigned>(c.block)}, 0};
          },
      .problem = [](float*, const float*, long long n, int steps) { return FmaProblem{n, steps}; },
      .workload =
          [](const FmaProblem& p, Workload& w) {
            const auto n = static_cast<std::size_t>(p.elements);
            w.output<float>(n).input<float>(n).scalar(p.elements).scalar(p.steps);
          },
      .reference = fma_reference,
      // Roundings of all steps, each damped by the factors that follow it.
      .tolerance = {.relative = 1e-4, .absolute = 1e-4},
      .flops = [](const FmaProblem& p) { return 2.0 * static_cast<double>(p.elements) * p.steps; },
      .bytes =
          [](const FmaProblem& p) {
            return 2.0 * sizeof(float) * static_cast<double>(p.elements);
          }};
}

MmaKernel mma_kernel() {
  return {
      .name = "roofline_mma",
      .source = {.file = templates_dir() / "roofline/roofline.cuh"},
      .entry = "kiln::templates::roofline_mma",
      .config_type = "kiln::templates::RooflineMma",
      .space = kMmaSpace,
      .launch =
          [](const RooflineMma& c, const MmaProblem& p) {
            return Launch{{blocks(p.tiles, c.tile())}, {static_cast<unsigned>(c.block)}, 0};
          },
      .problem = [](float*, const bfloat16*, const bfloat16*, long long tiles,
                    int steps) { return MmaProblem{tiles, steps}; },
      .workload =
          [](const MmaProblem& p, Workload& w) {
            // All values have one sign: sums that stay far from 0 can be compared.
            w.output<float>(static_cast<std::size_t>(p.tiles) * 128)
                .input<bfloat16>(256, {0.5, 1.5})
                .input<bfloat16>(128, {0.5, 1.5});
            w.scalar(p.tiles).scalar(p.steps);
          },
      .reference = mma_reference,
      // Tensor cores cut off where floats would round, at every step.
      .tolerance = {.relative = 2e-3, .absolute = 0},
      .flops =
          [](const MmaProblem& p) {
            return 2.0 * 16 * 8 * 16 * static_cast<double>(p.tiles) * p.steps;
          },
      .bytes =
          [](const MmaProblem& p) { return 128.0 * sizeof(float) * static_cast<double>(p.tiles); }};
}

CopyProblem copy_problem(const DeviceInfo& device) {
  // Bytes of each array. A GPU moves the least of a host in less time than it takes to begin.
  const std::int64_t kMost = 256 << 20, kLeast = device.limits.on_host() ? 64 << 20 : kMost;
  const std::int64_t wanted = std::clamp(2 * device.limits.l2_bytes, kLeast, kMost);
  auto bytes = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(wanted)));
  while (bytes > device.limits.memory_bytes / 16 && bytes > (1 << 20)) bytes /= 2;
  return {bytes / static_cast<std::int64_t>(sizeof(float))};
}

FmaProblem fma_problem(const DeviceInfo& device) {
  // Whole waves for every tile of the space: each multiprocessor gets the same.
  return {std::int64_t{std::max(1, device.limits.multiprocessors)} << 18, 2048};
}

MmaProblem mma_problem(const DeviceInfo& device) {
  return {std::int64_t{std::max(1, device.limits.multiprocessors)} << 11, 1024};
}

}  // namespace kiln::templates

namespace kiln {

namespace {

using namespace templates;

/// `get` makes a result of a kernel and a problem, or none; without one of them there is no
/// roofline.
template <class Get>
std::optional<Roofline> combine(const Runtime& runtime, const Get& get) {
  const DeviceInfo& device = runtime.device();
  const std::optional<TuneResult> copy = get(copy_kernel(), copy_problem(device));
  const std::optional<TuneResult> fma = get(fma_kernel(), fma_problem(device));
  if (!copy || !fma) return {};
  Roofline roof{.bytes_per_second = rate(copy->bytes, fastest(*copy)),
                .flops_per_second = rate(fma->flops, fastest(*fma)),
                .device = device.name,
                .from_store = copy->from_store && fma->from_store};
  if (device.limits.compute_capability >= 80) {
    const std::optional<TuneResult> mma = get(mma_kernel(), mma_problem(device));
    if (!mma) return {};
    roof.tensor_flops_per_second = rate(mma->flops, fastest(*mma));
    roof.from_store = roof.from_store && mma->from_store;
  }
  return roof;
}

}  // namespace

Roofline roofline(const Runtime& runtime, const TuneOptions& options) {
  return *combine(runtime, [&](const auto& kernel, const auto& problem) {
    return std::optional(measured(runtime, kernel, problem, options));
  });
}

std::optional<Roofline> known_roofline(const Runtime& runtime) {
  return combine(runtime, [&](const auto& kernel, const auto& problem) {
    return runtime.tuned(kernel).known(problem);
  });
}

}  // namespace kiln
