// A gated MLP whose inner dimension is divided among ranks, tuned as a whole. Each rank has some of
// the rows; it gathers the others' and multiplies all of them by its columns of gate and up
// (all-gather + GEMM), activates, multiplies by its rows of the down projection, and gets the sums
// over ranks of its own rows (GEMM + reduce-scatter). The three kernels are tuned where they run,
// one after the other, by all ranks together. Ranks are threads, each on a device.
//
//   tensor_parallel_mlp [DEVICE...]    cuda:0 cuda:1, say, which must reach each other's memory
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <kiln/kernels/gated_activation.hpp>
#include <kiln/kernels/gemm_all_gather.hpp>
#include <kiln/kernels/gemm_reduce_scatter.hpp>
#include <kiln/kiln.hpp>

using namespace kiln::templates;

constexpr int kRows = 16, kHidden = 32, kInner = 24;  // kInner: of each rank

std::vector<float> elements(int seed, int count) {
  std::vector<float> all;
  for (int i = 0; i < count; ++i) all.push_back(float((i * 7 + seed * 3) % 11 - 5) / 8);
  return all;
}
std::vector<float> rows_of(int rank) { return elements(rank, kRows * kHidden); }
std::vector<float> gate_up_of(int rank) { return elements(20 + rank, 2 * kInner * kHidden); }
std::vector<float> down_of(int rank) { return elements(40 + rank, kHidden * kInner); }

/// A rank's rows of the result, from all ranks' weights.
std::vector<float> expected(int rank, int ranks) {
  const auto x = rows_of(rank);
  std::vector<float> y(kRows * kHidden);
  for (int r = 0; r < ranks; ++r) {
    const auto gate_up = gate_up_of(r), down = down_of(r);
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kInner; ++j) {
        float gate = 0, up = 0;
        for (int l = 0; l < kHidden; ++l) {
          gate += x[i * kHidden + l] * gate_up[j * kHidden + l];
          up += x[i * kHidden + l] * gate_up[(kInner + j) * kHidden + l];
        }
        const float activated = gate / (1 + std::exp(-gate)) * up;
        for (int h = 0; h < kHidden; ++h) y[i * kHidden + h] += activated * down[h * kInner + j];
      }
  }
  return y;
}

/// What each rank does. Returns the largest error of its rows.
float work(const std::string& device, std::shared_ptr<kiln::Communicator> ranks) {
  const int size = ranks->size(), rank = ranks->rank(), m = kRows;
  kiln::RuntimeOptions options;
  options.device = device;
  options.mode = kiln::Mode::untuned;  // a launch that tuned by itself would wait for the others
  const kiln::Runtime runtime(options);
  // Both operations use it, one after the other.
  kiln::SymmetricMemory memory(runtime, ranks,
                               {.bytes = std::max(all_gather_bytes<float>(m, kHidden, size),
                                                  reduce_scatter_bytes<float>(m, kHidden, size)),
                                .flags = kPeerGemmFlags});
  const AllGatherGemm<float> gather(runtime, memory);
  const ReduceScatterGemm<float> scatter(runtime, memory);
  const auto activate = runtime.tuned(gated_activation_kernel<float, kiln::epilogue::Silu>());

  const auto x = runtime.array(rows_of(rank)), gate_up = runtime.array(gate_up_of(rank)),
             down = runtime.array(down_of(rank));
  auto projected = runtime.array<float>(std::size_t(size) * m * 2 * kInner);
  auto activated = runtime.array<float>(std::size_t(size) * m * kInner);
  auto y = runtime.array<float>(m * kHidden);
  const auto mlp = [&](kiln::Region& region) {
    const kiln::Stream stream{};
    gather(region, stream, projected.data(), x.data(), gate_up.data(), m, 2 * kInner, kHidden);
    region(activate, stream, activated.data(), projected.data(), size * m, kInner);
    scatter(region, stream, y.data(), activated.data(), down.data(), m, kHidden, kInner);
  };

  const auto want = expected(rank, size);
  const auto error = [&] {
    float most = 0;
    const auto got = y.download();
    for (std::size_t i = 0; i < want.size(); ++i) most = std::max(most, std::abs(got[i] - want[i]));
    return most;
  };
  kiln::RegionOptions tuning;
  tuning.ranks = ranks;
  tuning.together.guard = memory.guard(60);   // a run that hangs ends on all ranks
  tuning.before = [&] { memory.barrier(); };  // else the first kernel waits for late ranks
  tuning.max_evaluations = 3;                 // of each kernel
  tuning.check = [&] { return std::string(error() < 1e-2f ? "" : "the result is wrong"); };
  const kiln::RegionResult result = kiln::tune_region(runtime, mlp, tuning);
  if (rank == 0)
    for (const kiln::RegionSite& site : result.sites)
      std::printf("%-20s %s\n", site.tuned.kernel.c_str(),
                  site.tuned.describe(site.tuned.winner()).c_str());

  memory.within(kiln::deadline_in(60), [&] {
    kiln::Region production;
    mlp(production);
    runtime.synchronize();
  });
  const float most = result.tuned() ? error() : HUGE_VALF;
  memory.close();
  return most;
}

/// One device for each rank: a GPU has one rank, the host has as many as one likes.
std::vector<std::string> devices(int count, char** given) {
  if (count > 0) return {given, given + count};
  if (kiln::devices().front().target.kind == kiln::Target::Kind::cuda) return {"cuda:0"};
  return {"host", "host"};
}

int main(int argc, char** argv) {
  const std::vector<std::string> on = devices(argc - 1, argv + 1);
  std::vector<float> errors(on.size(), HUGE_VALF);
  {
    auto ends = kiln::thread_communicators(int(on.size()));
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < on.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          errors[rank] = work(on[rank], std::move(ends[rank]));
        } catch (const std::exception& thrown) {
          std::printf("rank %zu: %s\n", rank, thrown.what());
        }
      });
  }
  for (std::size_t rank = 0; rank < on.size(); ++rank)
    std::printf("rank %zu of %zu on %s: largest error %g\n", rank, on.size(), on[rank].c_str(),
                double(errors[rank]));
  return *std::max_element(errors.begin(), errors.end()) < 1e-2f ? 0 : 1;
}
