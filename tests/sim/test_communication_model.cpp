#include <algorithm>
#include <utility>

#include "communication_model.hpp"
#include "kiln_test.hpp"

using namespace sim;

namespace {

const Machine kMachine;
/// No latency of any kind.
Machine ideal() { return {.copy_start_seconds = 0, .flag_seconds = 0, .launch_seconds = 0}; }

double best_fused_all_gather(const Operation& op) {
  double best = 1e9;
  for (const int chunks : {1, 2, 4, 8, 16})
    best = std::min(best, fused_all_gather_gemm(op, kMachine, {chunks}));
  return best;
}
double best_fused_reduce_scatter(const Operation& op) {
  double best = 1e9;
  for (const int chunks : {1, 2, 4, 8, 16})
    best = std::min(best, fused_gemm_reduce_scatter(op, kMachine, {chunks}));
  return best;
}

}  // namespace

TEST_CASE("communication over arithmetic of two ranks is 1013 / n per rank", "[sim]") {
  for (const std::int64_t n : {2048, 4096, 8192, 14336}) {
    const Operation gather{8192, n, 8192, 2}, scatter{8192, 8192, n, 2};
    const double expected = 1013.0 / static_cast<double>(n);
    CHECK(all_gather_seconds(gather, kMachine) / gemm_seconds(gather, kMachine) ==
          Approx(expected).epsilon(0.001));
    CHECK(reduce_scatter_seconds(scatter, kMachine) / gemm_seconds(scatter, kMachine) ==
          Approx(expected).epsilon(0.001));
  }
}

TEST_CASE("copies of 4, 16 and 64 MB have the rates that were reported", "[sim]") {
  // QuACK's record of a B300's copy engines: 335, 560 and 695 GB/s.
  const Machine b300{.bytes_per_second = 756e9, .copy_start_seconds = 6.6e-6};
  for (const auto& [bytes, rate] : {std::pair{4e6, 335e9}, {16e6, 560e9}, {64e6, 695e9}})
    CHECK(bytes / copy_seconds(bytes, b300) == Approx(rate).epsilon(0.03));
}

TEST_CASE("overlap gains what it hides, never more", "[sim]") {
  for (const int ranks : {2, 4, 8}) {
    for (const std::int64_t size : {512, 2048, 4096, 14336}) {
      CAPTURE(ranks, size);
      const Operation gather{8192, size, 8192, ranks}, scatter{8192, 4096, size, ranks};
      const double gemm = gemm_seconds(gather, ideal());
      const double wire = all_gather_seconds(gather, ideal());
      // A chunk's arithmetic is all that cannot be hidden where the wire is the limit.
      const double fused = fused_all_gather_gemm(gather, ideal(), {64});
      CHECK(fused >= Approx(std::max(gemm, wire)));
      CHECK(fused <= std::max(gemm, wire) + gemm / (64 * ranks) + 1e-9);
      CHECK(fused_all_gather_gemm(gather, ideal(), {1}) <=
            Approx(unfused_all_gather_gemm(gather, ideal())));

      const double sums = gemm_seconds(scatter, ideal());
      const double sent = reduce_scatter_seconds(scatter, ideal());
      const double out = fused_gemm_reduce_scatter(scatter, ideal(), {64});
      CHECK(out >= Approx(std::max(sums, sent)));
      CHECK(out <= std::max(sums, sent) + (sums + 8e-5) / (64 * ranks) + 1e-9);
    }
  }
}

TEST_CASE("the time over the bare GEMM is that of the goals, with two ranks", "[sim]") {
  const Operation gather{8192, 4096, 8192, 2}, scatter{8192, 4096, 8192, 2};
  CHECK(best_fused_all_gather(gather) / gemm_seconds(gather, kMachine) < 1.08);
  CHECK(unfused_all_gather_gemm(gather, kMachine) / gemm_seconds(gather, kMachine) > 1.2);
  CHECK(best_fused_reduce_scatter(scatter) / gemm_seconds(scatter, kMachine) < 1.15);
  CHECK(unfused_gemm_reduce_scatter(scatter, kMachine) / gemm_seconds(scatter, kMachine) > 1.1);
}

TEST_CASE("chunks help until copies cost more than they hide", "[sim]") {
  // Communication that takes as long as the arithmetic: one chunk hides least.
  const Operation op{8192, 1024, 8192, 2};
  const auto fused = [&](int chunks) { return fused_all_gather_gemm(op, kMachine, {chunks}); };
  CHECK(fused(4) < fused(1));
  CHECK(fused(4096) > fused(4));
  // A multiprocessor that communicates does not multiply.
  CHECK(fused_all_gather_gemm(op, kMachine, {4, 0.1}) > fused(4));
}

TEST_CASE("ranks add communication: 2, 4 and 8", "[sim]") {
  // Each rank has its part of n, as tensor parallelism divides it.
  double before = 0;
  for (const int ranks : {2, 4, 8}) {
    CAPTURE(ranks);
    const Operation op{8192, 32768 / ranks, 8192, ranks};
    const double share = all_gather_seconds(op, kMachine) / gemm_seconds(op, kMachine);
    CHECK(share ==
          Approx(1013.0 * 2 * (ranks - 1) / ranks / static_cast<double>(op.n)).epsilon(0.001));
    CHECK(share > before);
    before = share;
    CHECK(best_fused_all_gather(op) < unfused_all_gather_gemm(op, kMachine));
  }
}
