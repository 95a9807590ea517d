// Ranks that run GEMMs together as threads of one process, on data whose results are exact.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "findings.hpp"
#include "kiln/communicators.hpp"
#include "kiln/kernels/gemm_all_gather.hpp"
#include "kiln/kernels/gemm_reduce_scatter.hpp"
#include "kiln/runtime.hpp"

namespace kiln::test {

/// A rank's A is one matrix times a number that differs between ranks and rounds. So results are
/// made of one product, and rows or sums of another rank or an earlier round are wrong.
template <class T>
class PeerData {
 public:
  static constexpr int kFactors = 5;  // 1 to 5

  /// A: [rows][k], B: [n][k].
  PeerData(int rows, int n, int k) : n_(n), a_(size(rows, k)), b_(size(n, k)) {
    std::mt19937 random(7);
    const auto small = [&] { return static_cast<float>(static_cast<int>(random() % 3) - 1); };
    for (float& x : a_) x = small();
    for (float& x : b_) x = small();
    product_.resize(size(rows, n));
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < n; ++j) {
        float sum = 0;
        for (int l = 0; l < k; ++l) sum += a_[size(i, k) + l] * b_[size(j, k) + l];
        product_[size(i, n) + j] = sum;
      }
  }
  static int factor(int rank, int round) { return 1 + (rank * 3 + round * 7) % kFactors; }

  std::vector<T> a(int factor) const {
    std::vector<T> rows;
    for (const float x : a_) rows.push_back(T(x * static_cast<float>(factor)));
    return rows;
  }
  std::vector<T> b() const { return {b_.begin(), b_.end()}; }

  /// C of all-gather + GEMM, where A has the rows of one rank.
  std::size_t gathered_elements(int ranks) const {
    return product_.size() * static_cast<std::size_t>(ranks);
  }
  bool gathered(const std::vector<T>& c, int ranks, int round) const {
    for (int r = 0; r < ranks; ++r)
      for (std::size_t i = 0; i < product_.size(); ++i)
        if (!same(c[static_cast<std::size_t>(r) * product_.size() + i], part(i, r, round)))
          return false;
    return true;
  }
  /// C of GEMM + reduce-scatter on `rank`, where A has the rows of all.
  std::size_t scattered_elements(int ranks) const {
    return product_.size() / static_cast<std::size_t>(ranks);
  }
  bool scattered(const std::vector<T>& c, int rank, int ranks, int round) const {
    const std::size_t count = scattered_elements(ranks), first = count * std::size_t(rank);
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = 0; r < ranks; ++r)
        sum += static_cast<float>(part(first + i, (rank + r) % ranks, round));
      if (!same(c[i], T(sum))) return false;
    }
    return true;
  }

 private:
  static std::size_t size(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }
  T part(std::size_t i, int rank, int round) const {
    return T(product_[i] * static_cast<float>(factor(rank, round)));
  }
  static bool same(T got, T want) { return static_cast<float>(got) == static_cast<float>(want); }

  int n_;
  std::vector<float> a_, b_, product_;
};

/// What a rank has of it on its device.
template <class T>
class PeerRank {
 public:
  PeerRank(const Runtime& runtime, const SymmetricMemory& memory, const PeerData<T>& data,
           bool gathers)
      : runtime_(runtime),
        memory_(memory),
        data_(data),
        gathers_(gathers),
        b_(runtime.array(data.b())),
        c_(runtime.array<T>(gathers ? data.gathered_elements(memory.size())
                                    : data.scattered_elements(memory.size()))) {
    for (int factor = 1; factor <= PeerData<T>::kFactors; ++factor)
      a_.push_back(runtime.array(data.a(factor)));
  }
  /// One round. `launch(c, a, b)` launches on the default stream. Whether C is right.
  template <class Launch>
  bool run(int round, Deadline deadline, const Launch& launch) {
    const int factor = PeerData<T>::factor(memory_.rank(), round);
    memory_.within(deadline, [&] {
      launch(c_.data(), a_[static_cast<std::size_t>(factor - 1)].data(), b_.data());
      runtime_.synchronize();
    });
    const std::vector<T> c = c_.download();
    return gathers_ ? data_.gathered(c, memory_.size(), round)
                    : data_.scattered(c, memory_.rank(), memory_.size(), round);
  }

 private:
  const Runtime& runtime_;
  const SymmetricMemory& memory_;
  const PeerData<T>& data_;
  bool gathers_;
  std::vector<Array<T>> a_;
  Array<T> b_, c_;
};

/// Sleeps for up to `most` microseconds now and then: one rank comes late, then another.
inline void straggle(int rank, int round, int most) {
  std::mt19937 random(static_cast<unsigned>(rank * 100003 + round));
  if (random() % 4 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(most)));
}

/// The kernel with blocks that are late within an operation: `turns` of about a microsecond, an
/// expression of `rank`, `epoch` and `place` (gemm_peers.cuh).
template <class Kernel>
Kernel with_delays(Kernel kernel, const std::string& turns) {
  kernel.source.options.push_back("-DKILN_PEER_DELAY(rank,epoch,place)=(" + turns + ")");
  return kernel;
}
/// Up to 0.2 ms, other ones each time.
inline const char* const kRandomDelays =
    "(rank*7919u+epoch*104729u+unsigned(place)*1299709u)*2654435761u%200u";

/// Calls `body(rank's runtime, memory, communicator)` for each rank on a thread of its own. Returns
/// what they threw. `reserved`: multiprocessors that launches leave free. `store`: where what is
/// compiled is kept, for tests that tune nothing.
inline std::string on_peers(const std::vector<std::string>& devices, std::size_t bytes,
                            const std::function<void(const Runtime&, SymmetricMemory&,
                                                     std::shared_ptr<Communicator>)>& body,
                            unsigned flags = templates::kPeerGemmFlags, int reserved = 0,
                            const std::filesystem::path& store = {}) {
  auto ends = thread_communicators(static_cast<int>(devices.size()));
  std::vector<std::string> thrown(ends.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ends.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        RuntimeOptions options;
        options.device = devices[r];
        options.store.disk = !store.empty();
        options.store.directory = store;
        options.mode = Mode::untuned;
        options.reserved_multiprocessors = reserved;
        const Runtime runtime(options);
        const std::shared_ptr<Communicator> end = std::move(ends[r]);
        SymmetricMemory memory(runtime, end, {.bytes = bytes, .flags = flags, .seconds = 60});
        body(runtime, memory, end);
        memory.close();
      } catch (const std::exception& error) {
        thrown[r] = error.what() + std::string("; ");
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& text : thrown) all += text;
  return all;
}

}  // namespace kiln::test
