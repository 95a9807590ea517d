// Not only kernels have knobs: the sum over all ranks, whose method and block size are tuned by the
// ranks together. Here ranks are threads; with kiln::mpi_communicator or NCCL they are processes.
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <thread>
#include <vector>

#include <kiln/kiln.hpp>

enum class Method {
  everyone_sums,    // each rank reads all inputs
  each_sums_a_part  // and copies the others' parts
};
struct SumKnobs {
  Method method;
  int block;  // elements at a time
};
KILN_CONFIG(SumKnobs, method, block)
struct SumProblem {
  int n;
};
KILN_PROBLEM(SumProblem, n)

constexpr int kRanks = 2, kElements = 1 << 16;

class SumOverRanks {
 public:
  void run(const SumKnobs& knobs, int rank, float* out, const float* in, int n) {
    inputs_[rank] = in;
    ranks_meet_.arrive_and_wait();
    if (knobs.method == Method::everyone_sums) {
      sum(out, 0, n, knobs.block);
    } else {
      sum(total_.data(), n * rank / kRanks, n * (rank + 1) / kRanks, knobs.block);
      ranks_meet_.arrive_and_wait();
      std::copy_n(total_.data(), n, out);
    }
    ranks_meet_.arrive_and_wait();  // nobody changes what others still read
  }

 private:
  void sum(float* out, int from, int to, int block) const {
    for (int b = from; b < to; b += block) {
      const int end = std::min(b + block, to);
      std::copy(inputs_[0] + b, inputs_[0] + end, out + b);
      for (int r = 1; r < kRanks; ++r)
        for (int i = b; i < end; ++i) out[i] += inputs_[r][i];
    }
  }

  std::barrier<> ranks_meet_{kRanks};
  const float* inputs_[kRanks] = {};
  std::vector<float> total_ = std::vector<float>(kElements);
};

constexpr auto space =
    kiln::Space<SumKnobs, SumProblem>{{Method::everyone_sums, 1024}}
        .values(&SumKnobs::method, {Method::everyone_sums, Method::each_sums_a_part})
        .values(&SumKnobs::block, {256, 1024, 4096, 16384})
        .where("a block is no more than there is",
               [](const SumKnobs& k, const SumProblem& p, const kiln::DeviceLimits&) {
                 return k.block <= p.n;
               })
        .checked();

/// What one rank does; true when all went well.
bool run_rank(SumOverRanks& sums, std::shared_ptr<kiln::Communicator> ranks) {
  const int rank = ranks->rank();
  kiln::RuntimeOptions options;
  options.device = "host";
  options.tuning.ranks = ranks;
  kiln::Runtime runtime(options);

  const kiln::Function<SumKnobs, SumProblem, void(float*, const float*, int)> sum{
      .name = "sum_over_ranks",
      .version = "1",
      .space = space,
      .call = [&](const SumKnobs& k, kiln::Stream, float* out, const float* in,
                  int n) { sums.run(k, rank, out, in, n); },
      .problem = [](float*, const float*, int n) { return SumProblem{n}; },
      .verify = [](float* out, const float*, int n) { return out[0] == 3 && out[n - 1] == 3; },
      .communicates = true};
  const auto sum_tuned = kiln::tuned(runtime, sum);

  const std::vector<float> in(kElements, float(rank + 1));
  std::vector<float> out(kElements);
  sum_tuned({}, out.data(), in.data(), kElements);  // tunes this problem, then calls
  const bool right = out == std::vector<float>(kElements, 3.0f);

  std::fill(out.begin(), out.end(), 0.0f);
  sum_tuned.with({.tune = false})({}, out.data(), in.data(), kElements);  // the default knobs

  const SumKnobs knobs = sum_tuned.knobs({kElements});
  std::printf("rank %d of %d: %s, block %d\n", rank, ranks->size(),
              knobs.method == Method::everyone_sums ? "everyone sums" : "each sums a part",
              knobs.block);
  return right && out == std::vector<float>(kElements, 3.0f);
}

int main() {
  SumOverRanks sums;
  auto ends = kiln::thread_communicators(kRanks);
  std::vector<char> well(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] { well[r] = run_rank(sums, std::move(ends[r])); });
  for (std::thread& thread : threads) thread.join();
  return well == std::vector<char>(kRanks, 1) ? 0 : 1;
}
