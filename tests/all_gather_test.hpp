// Ranks that run all-gather + GEMM as threads of one process, on data whose results are exact.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "findings.hpp"
#include "kiln/communicators.hpp"
#include "kiln/kernels/gemm_all_gather.hpp"
#include "kiln/runtime.hpp"

namespace kiln::test {

/// A rank's rows are the same matrix times a number that differs between ranks and rounds. So C of one
/// round is a multiple of one product, and rows of another rank or an earlier round are wrong.
template <class T>
class GatheredData {
 public:
  static constexpr int kFactors = 5;  // 1 to 5

  GatheredData(int m, int n, int k) : m_(m), n_(n), k_(k), a_(size(m, k)), b_(size(n, k)) {
    std::mt19937 random(7);
    const auto small = [&] { return static_cast<float>(static_cast<int>(random() % 3) - 1); };
    for (float& x : a_) x = small();
    for (float& x : b_) x = small();
    product_.resize(size(m, n));
    for (int i = 0; i < m; ++i)
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
  std::vector<T> b() const {
    std::vector<T> rows;
    for (const float x : b_) rows.push_back(T(x));
    return rows;
  }
  std::size_t elements(int ranks) const { return size(m_ * ranks, n_); }
  bool right(const std::vector<T>& c, int ranks, int round) const {
    const std::size_t shard = size(m_, n_);
    for (int r = 0; r < ranks; ++r)
      for (std::size_t i = 0; i < shard; ++i)
        if (!(static_cast<float>(c[static_cast<std::size_t>(r) * shard + i]) ==
              static_cast<float>(T(product_[i] * static_cast<float>(factor(r, round))))))
          return false;
    return true;
  }

  const int m_, n_, k_;

 private:
  static std::size_t size(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }
  std::vector<float> a_, b_, product_;
};

/// What a rank has of it on its device.
template <class T>
class GatheringRank {
 public:
  GatheringRank(const Runtime& runtime, const SymmetricMemory& memory, const GatheredData<T>& data)
      : runtime_(runtime),
        memory_(memory),
        data_(data),
        b_(runtime.array(data.b())),
        c_(runtime.array<T>(data.elements(memory.size()))) {
    for (int factor = 1; factor <= GatheredData<T>::kFactors; ++factor)
      a_.push_back(runtime.array(data.a(factor)));
  }
  /// One round. `launch(c, a, b)` launches on the default stream.
  template <class Launch>
  bool run(int round, Deadline deadline, const Launch& launch) {
    const int factor = GatheredData<T>::factor(memory_.rank(), round);
    memory_.within(deadline, [&] {
      launch(c_.data(), a_[static_cast<std::size_t>(factor - 1)].data(), b_.data());
      runtime_.synchronize();
    });
    return data_.right(c_.download(), memory_.size(), round);
  }

 private:
  const Runtime& runtime_;
  const SymmetricMemory& memory_;
  const GatheredData<T>& data_;
  std::vector<Array<T>> a_;
  Array<T> b_, c_;
};

/// Sleeps for up to `most` microseconds now and then: one rank comes late, then another.
inline void straggle(int rank, int round, int most) {
  std::mt19937 random(static_cast<unsigned>(rank * 100003 + round));
  if (random() % 4 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(most)));
}

/// Calls `body(rank's runtime, memory, communicator)` for each rank on a thread of its own. Returns what
/// they threw.
inline std::string on_gathering_ranks(
    const std::vector<std::string>& devices, std::size_t bytes,
    const std::function<void(const Runtime&, SymmetricMemory&, std::shared_ptr<Communicator>)>&
        body) {
  auto ends = thread_communicators(static_cast<int>(devices.size()));
  std::vector<std::string> thrown(ends.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ends.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        RuntimeOptions options;
        options.device = devices[r];
        options.store.disk = false;
        options.mode = Mode::untuned;
        const Runtime runtime(options);
        const std::shared_ptr<Communicator> end = std::move(ends[r]);
        SymmetricMemory memory(
            runtime, end, {.bytes = bytes, .flags = templates::kAllGatherFlags, .seconds = 60});
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
