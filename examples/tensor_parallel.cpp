// A linear layer whose columns are divided among ranks: each has some of the rows, gathers the
// others' and multiplies all of them by its columns. Here ranks are threads on the host device.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include <kiln/kernels/gemm_all_gather.hpp>
#include <kiln/kiln.hpp>

using namespace kiln::templates;

constexpr int kRanks = 2, kRows = 24, kColumns = 40, kDepth = 32;

/// Element i of a rank's rows, or, for 100 + rank, of its columns.
float element(int rank, std::size_t i) { return float((i * 7 + std::size_t(rank) * 3) % 11) - 5; }

std::vector<float> elements(int rank, int count) {
  std::vector<float> all;
  for (int i = 0; i < count; ++i) all.push_back(element(rank, std::size_t(i)));
  return all;
}

/// What each rank does. Returns its part of C: all rows, its own columns.
std::vector<float> work(std::shared_ptr<kiln::Communicator> ranks) {
  const int m = kRows, n = kColumns, k = kDepth;
  kiln::RuntimeOptions options;
  options.device = "host";
  options.mode = kiln::Mode::untuned;  // a launch that tuned by itself would wait for the others
  const kiln::Runtime runtime(options);
  kiln::SymmetricMemory memory(
      runtime, ranks,
      {.bytes = all_gather_bytes<float>(m, k, ranks->size()), .flags = kPeerGemmFlags});
  const AllGatherGemm<float> operation(runtime, memory);
  const auto a = runtime.array(elements(ranks->rank(), m * k));
  const auto b = runtime.array(elements(100 + ranks->rank(), n * k));
  auto c = runtime.array<float>(std::size_t(ranks->size()) * m * n);

  kiln::TuneOptions tuning;
  tuning.max_evaluations = 3;
  memory.within(kiln::deadline_in(120), [&] { operation.tune(m, n, k, ranks, tuning); });
  memory.within(kiln::deadline_in(30), [&] {
    operation({}, c.data(), a.data(), b.data(), m, n, k);
    runtime.synchronize();
  });
  memory.close();
  return c.download();
}

/// The largest error of a rank's part.
float error_of(int rank, const std::vector<float>& c) {
  const auto b = elements(100 + rank, kColumns * kDepth);
  float most = 0;
  for (int r = 0; r < kRanks; ++r) {
    const auto a = elements(r, kRows * kDepth);
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kColumns; ++j) {
        float sum = 0;
        for (int l = 0; l < kDepth; ++l) sum += a[i * kDepth + l] * b[j * kDepth + l];
        most = std::max(most, std::abs(c[(r * kRows + i) * kColumns + j] - sum));
      }
  }
  return most;
}

int main() {
  std::vector<float> errors(kRanks);
  {
    auto ends = kiln::thread_communicators(kRanks);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back(
          [&, rank] { errors[rank] = error_of(rank, work(std::move(ends[rank]))); });
  }
  for (int rank = 0; rank < kRanks; ++rank)
    std::printf("rank %d of %d: largest error %g\n", rank, kRanks, double(errors[rank]));
  return errors[0] < 1e-3f && errors[1] < 1e-3f ? 0 : 1;
}
