// A linear layer whose columns are divided among ranks: each has some of the rows, gathers the
// others' and multiplies all of them by its columns. Ranks are threads, each on a device.
//
//   tensor_parallel [DEVICE...]    cuda:0 cuda:1, say, which must reach each other's memory
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <kiln/kernels/gemm_all_gather.hpp>
#include <kiln/kiln.hpp>

using namespace kiln::templates;

constexpr int kRows = 24, kColumns = 40, kDepth = 32;

/// A rank's rows, or, of 100 + rank, its columns.
std::vector<float> elements(int rank, int count) {
  std::vector<float> all;
  for (int i = 0; i < count; ++i) all.push_back(float((i * 7 + rank * 3) % 11 - 5));
  return all;
}

/// One device for each rank: a GPU has one rank, the host has as many as one likes.
std::vector<std::string> devices(int count, char** given) {
  if (count > 0) return {given, given + count};
  if (kiln::devices().front().target.kind == kiln::Target::Kind::cuda) return {"cuda:0"};
  return {"host", "host"};
}

/// What each rank does. Returns its part of C: all rows, its own columns.
std::vector<float> work(const std::string& device, std::shared_ptr<kiln::Communicator> ranks) {
  const int m = kRows, n = kColumns, k = kDepth;
  kiln::RuntimeOptions options;
  options.device = device;
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
  operation.tune(m, n, k, ranks, tuning);
  memory.within(kiln::deadline_in(30), [&] {
    operation({}, c.data(), a.data(), b.data(), m, n, k);
    runtime.synchronize();
  });
  memory.close();
  return c.download();
}

/// The largest error of a rank's part.
float error_of(int rank, int ranks, const std::vector<float>& c) {
  const auto b = elements(100 + rank, kColumns * kDepth);
  float most = 0;
  for (int r = 0; r < ranks; ++r) {
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

int main(int argc, char** argv) {
  const std::vector<std::string> on = devices(argc - 1, argv + 1);
  const int count = int(on.size());
  std::vector<float> errors(on.size());
  {
    auto ends = kiln::thread_communicators(count);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < count; ++rank)
      threads.emplace_back([&, rank] {
        errors[rank] = error_of(rank, count, work(on[rank], std::move(ends[rank])));
      });
  }
  for (int rank = 0; rank < count; ++rank)
    std::printf("rank %d of %d on %s: largest error %g\n", rank, count, on[rank].c_str(),
                double(errors[rank]));
  return *std::max_element(errors.begin(), errors.end()) < 1e-3f ? 0 : 1;
}
