#include <cmath>

#include "kiln/metrics.hpp"
#include "kiln_test.hpp"

using kiln::BoundBy;
using kiln::Candidate;
using kiln::CandidateStatus;
using kiln::Metrics;
using kiln::metrics;
using kiln::Roofline;
using kiln::TuneResult;

namespace {

/// 100 GB/s, 1 TFLOP/s: a ridge of 10 operations per byte.
const Roofline kRoof{.bytes_per_second = 1e11, .flops_per_second = 1e12};

Candidate measured(double seconds) {
  Candidate c;
  c.status = CandidateStatus::measured;
  c.seconds = seconds;
  return c;
}

TuneResult doing(double flops, double bytes, const char* type = "float") {
  TuneResult r;
  r.types = {type};
  r.flops = flops;
  r.bytes = bytes;
  return r;
}

bool empty(const Metrics& m) {
  return m.seconds == 0 && m.tflops == 0 && m.gbs == 0 && m.roofline_fraction == 0 &&
         m.bound == BoundBy::unknown;
}

}  // namespace

TEST_CASE("rates of a candidate", "[runtime][metrics]") {
  const Metrics m = metrics(doing(4e9, 2e8), measured(2e-3));
  CHECK(m.seconds == 2e-3);
  CHECK(m.tflops == Approx(2));
  CHECK(m.gbs == Approx(100));
  CHECK(m.roofline_fraction == 0);
  CHECK(m.bound == BoundBy::unknown);
}

TEST_CASE("the roof that takes longer is the one that binds", "[runtime][metrics]") {
  // 10^9 bytes take 10 ms; 10^10 operations take as long, more of them longer.
  const Metrics memory = metrics(doing(5e9, 1e9), measured(20e-3), &kRoof);
  CHECK(memory.bound == BoundBy::memory);
  CHECK(memory.roofline_fraction == Approx(0.5));
  const Metrics compute = metrics(doing(2e10, 1e9), measured(40e-3), &kRoof);
  CHECK(compute.bound == BoundBy::compute);
  CHECK(compute.roofline_fraction == Approx(0.5));
  CHECK(metrics(doing(1e10, 1e9), measured(10e-3), &kRoof).bound == BoundBy::memory);
  // Kernels that say only one of the two.
  CHECK(metrics(doing(2e10, 0), measured(40e-3), &kRoof).roofline_fraction == Approx(0.5));
  CHECK(metrics(doing(0, 1e9), measured(40e-3), &kRoof).roofline_fraction == Approx(0.25));
  // Data in a cache: more than the memory could.
  CHECK(metrics(doing(0, 1e9), measured(5e-3), &kRoof).roofline_fraction == Approx(2));
}

TEST_CASE("2-byte types are held against tensor cores", "[runtime][metrics]") {
  Roofline roof = kRoof;
  roof.tensor_flops_per_second = 1e13;
  for (const char* type :
       {"__half", "__nv_bfloat16", "__nv_fp8_e4m3", "kiln::templates::Fp8<__nv_bfloat16>"})
    CHECK(metrics(doing(1e11, 1e9, type), measured(20e-3), &roof).roofline_fraction == Approx(0.5));
  CHECK(metrics(doing(1e11, 1e9), measured(200e-3), &roof).roofline_fraction == Approx(0.5));
  // No tensor cores: the units there are.
  CHECK(metrics(doing(1e11, 1e9, "__half"), measured(200e-3), &kRoof).roofline_fraction ==
        Approx(0.5));
  CHECK(roof.ridge() == Approx(10));
  CHECK(roof.ridge(true) == Approx(100));
}

TEST_CASE("what is not known is 0, never infinite", "[runtime][metrics]") {
  CHECK(empty(metrics(doing(1e9, 1e9), Candidate{}, &kRoof)));
  Candidate failed = measured(1e-3);
  failed.status = CandidateStatus::wrong_result;
  CHECK(empty(metrics(doing(1e9, 1e9), failed, &kRoof)));
  for (double seconds : {0.0, -1.0, std::nan(""), HUGE_VAL})
    CHECK(empty(metrics(doing(1e9, 1e9), measured(seconds), &kRoof)));
  for (double amount : {0.0, -5.0, std::nan(""), HUGE_VAL}) {
    const Metrics m = metrics(doing(amount, amount), measured(1e-3), &kRoof);
    CHECK(m.tflops == 0);
    CHECK(m.gbs == 0);
    CHECK(m.roofline_fraction == 0);
    CHECK(m.bound == BoundBy::unknown);
  }
  for (double rate : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    const Roofline broken{.bytes_per_second = rate, .flops_per_second = rate};
    const Metrics m = metrics(doing(1e9, 1e9), measured(1e-3), &broken);
    CHECK(m.tflops == Approx(1));
    CHECK(m.roofline_fraction == 0);
    CHECK(m.bound == BoundBy::unknown);
    CHECK(broken.ridge() == 0);
    CHECK(broken.seconds(1, 1) == 0);
  }
  // Half a roofline answers half of the questions.
  const Roofline copy_only{.bytes_per_second = 1e11};
  CHECK(metrics(doing(1e12, 1e9), measured(20e-3), &copy_only).bound == BoundBy::memory);
}
