// Arrays with padding between their rows, and arrays that are zeroed before each launch.
#include <cmath>
#include <limits>

#include "kiln_test.hpp"
#include "runtime/measure/device_workload.hpp"
#include "unit/runtime/tune/tuner_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

constexpr int kRowCount = 3, kRowColumns = 5, kRowLeading = 8;

float* row_array(void** args, std::size_t argument) {
  return *static_cast<float**>(args[argument]);
}

/// y = 2 x, row by row; further elements of each row and rows, as a wrong kernel would write them.
void double_rows(float* y, const float* x, int beyond = 0) {
  for (int r = 0; r < kRowCount; ++r)
    for (int c = 0; c < kRowColumns + (r + 1 < kRowCount ? beyond : 0); ++c)
      y[r * kRowLeading + c] = 2 * x[r * kRowLeading + c];
}

KernelDefinition rows_kernel() {
  KernelDefinition k = doubling();
  k.workload = [](std::span<const std::int64_t>, Workload& w) {
    const Rows rows{kRowCount, kRowColumns, kRowLeading};
    w.output<float>(rows).input<float>(rows).scalar<int>(kRowCount);
  };
  k.reference = [](std::span<const std::int64_t>, std::span<void* const> args) {
    double_rows(static_cast<float*>(args[0]), static_cast<const float*>(args[1]));
  };
  return k;
}

/// y += x over the elements: what split-K does.
KernelDefinition adding_kernel() {
  KernelDefinition k = doubling();
  k.workload = [](std::span<const std::int64_t> p, Workload& w) {
    const auto n = static_cast<std::size_t>(p[0]);
    w.zeroed<float>(n).input<float>(n).scalar<int>(static_cast<int>(n));
  };
  k.reference = [](std::span<const std::int64_t>, std::span<void* const> args) {
    for (int i = 0; i < *static_cast<int*>(args[2]); ++i)
      static_cast<float*>(args[0])[i] += static_cast<const float*>(args[1])[i];
  };
  return k;
}
void add_all(void** args) {
  for (int i = 0; i < *static_cast<int*>(args[2]); ++i)
    row_array(args, 0)[i] += row_array(args, 1)[i];
}

}  // namespace

TEST_CASE("rows are compared, padding is not", "[runtime][rows]") {
  for (const bool digests : {false, true}) {
    Bench bench;
    bench.device->has_digests = digests;
    bench.device->compute = [](void** args) {
      double_rows(row_array(args, 0), row_array(args, 1));
    };
    bench.of(8).run = [](void** args) {
      double_rows(row_array(args, 0), row_array(args, 1));
      row_array(args, 0)[kRowLeading + 1] += 1;
    };
    bench.of(4).run = [](void** args) {  // one row too few
      double_rows(row_array(args, 0), row_array(args, 1));
      std::fill_n(row_array(args, 0) + 2 * kRowLeading, kRowColumns, std::nanf(""));
    };
    const TuneResult r = tune(bench, rows_kernel());
    CHECK(r.count(CandidateStatus::measured) == 2);
    CHECK(contains(find(r, {8, 0}).reason, "element 9 of argument 0"));
    CHECK(contains(find(r, {8, 0}).reason, "1 of 15 differ"));
    CHECK(contains(find(r, {4, 0}).reason, "5 of 15 differ"));
  }
}

TEST_CASE("a kernel that writes padding is out, and no other", "[runtime][rows]") {
  for (const int beyond : {1, 3})
    for (const int culprit : {1, 2, 8}) {  // 2 is the default
      Bench bench;
      bench.device->compute = [](void** args) {
        double_rows(row_array(args, 0), row_array(args, 1));
      };
      bench.of(culprit).run = [beyond](void** args) {
        double_rows(row_array(args, 0), row_array(args, 1), beyond);
      };
      bench.seconds(culprit, 1e-6);
      const TuneResult r = tune(bench, rows_kernel());
      for (const Candidate& c : r.candidates) {
        CAPTURE(r.describe(c), c.reason, beyond);
        CHECK((c.status == CandidateStatus::measured) == (c.config[0] != culprit));
        if (c.config[0] == culprit)
          CHECK(c.reason == "wrote element 5 of argument 0, in the padding after row 0");
      }
    }
}

TEST_CASE("a kernel that writes an input's padding, or past the last row, is out",
          "[runtime][rows]") {
  Bench bench;
  bench.device->compute = [](void** args) { double_rows(row_array(args, 0), row_array(args, 1)); };
  bench.of(4).run = [](void** args) {
    double_rows(row_array(args, 0), row_array(args, 1));
    row_array(args, 1)[6] = 1;
  };
  bench.of(8).run = [](void** args) {
    double_rows(row_array(args, 0), row_array(args, 1));
    row_array(args, 0)[2 * kRowLeading + kRowColumns] = 1;
  };
  const TuneResult r = tune(bench, rows_kernel());
  CHECK(r.count(CandidateStatus::measured) == 2);
  CHECK(contains(find(r, {4, 0}).reason, "wrote element 6 of argument 1, an input"));
  CHECK(contains(find(r, {8, 0}).reason, "wrote outside argument 0, after its 21 elements"));
}

TEST_CASE("padding that only timed launches write is found and put right", "[runtime][rows]") {
  for (const std::int64_t cache : {0, 4096}) {
    Bench bench;
    bench.device->info().limits.l2_bytes = cache;
    bench.device->compute = [](void** args) {
      double_rows(row_array(args, 0), row_array(args, 1));
    };
    bench.of(1).run = [&](void** args) {
      double_rows(row_array(args, 0), row_array(args, 1), bench.device->timing ? 2 : 0);
    };
    bench.seconds(1, 1e-6);
    const TuneResult r = tune(bench, rows_kernel());
    CHECK(r.count(CandidateStatus::measured) == 3);
    CHECK(contains(find(r, {1, 0}).reason, "in the padding after row"));
  }
}

TEST_CASE("rows that are read and written, without a reference", "[runtime][rows]") {
  KernelDefinition kernel = rows_kernel();
  kernel.reference = nullptr;
  kernel.workload = [](std::span<const std::int64_t>, Workload& w) {
    const Rows rows{kRowCount, kRowColumns, kRowLeading};
    w.in_out<float>(rows).input<float>(rows).scalar<int>(kRowCount);
  };
  const auto add_rows = [](void** args) {
    for (int r = 0; r < kRowCount; ++r)
      for (int c = 0; c < kRowColumns; ++c)
        row_array(args, 0)[r * kRowLeading + c] += row_array(args, 1)[r * kRowLeading + c];
  };
  Bench bench;
  bench.device->compute = add_rows;
  bench.of(8).run = [&](void** args) {
    add_rows(args);
    row_array(args, 0)[kRowLeading] += 1;
  };
  bench.of(4).run = [&](void** args) {
    add_rows(args);
    row_array(args, 0)[kRowLeading - 1] = 0;
  };
  const TuneResult r = tune(bench, kernel);
  CHECK(r.count(CandidateStatus::measured) == 2);
  CHECK(contains(find(r, {8, 0}).reason, "element 8 of argument 0"));
  CHECK(contains(find(r, {4, 0}).reason, "element 7 of argument 0, in the padding after row 0"));
}

TEST_CASE("an array is zeroed before every launch, timed or not", "[runtime][rows]") {
  for (const std::int64_t cache : {0, 8192})
    for (const bool records : {false, true}) {
      Bench bench;
      bench.device->info().limits.l2_bytes = cache;
      bench.device->records = records;
      int launches = 0, dirty = 0;
      bench.device->compute = [&](void** args) {
        ++launches;
        for (int i = 0; i < *static_cast<int*>(args[2]); ++i) dirty += row_array(args, 0)[i] != 0;
        add_all(args);
      };
      bool in_time = false;
      bench.device->on_fill = [&](void*, std::size_t) { in_time |= bench.device->timing; };
      bench.of(8).run = [](void** args) {  // forgets what was there
        for (int i = 0; i < *static_cast<int*>(args[2]); ++i) row_array(args, 0)[i] += 1;
      };
      const TuneResult r = tune(bench, adding_kernel());
      CHECK(r.count(CandidateStatus::measured) == 3);
      CHECK(find(r, {8, 0}).status == CandidateStatus::wrong_result);
      CHECK(launches > 20);
      CHECK(dirty == 0);
      CHECK_FALSE(in_time);
    }
}

TEST_CASE("rows that are zeroed keep their padding", "[runtime][rows]") {
  KernelDefinition kernel = rows_kernel();
  kernel.workload = [](std::span<const std::int64_t>, Workload& w) {
    const Rows rows{kRowCount, kRowColumns, kRowLeading};
    w.zeroed<float>(rows).input<float>(rows).scalar<int>(kRowCount);
  };
  Bench bench;
  bench.device->compute = [](void** args) { double_rows(row_array(args, 0), row_array(args, 1)); };
  bench.of(8).run = [](void** args) {  // zeros everything once more
    std::fill_n(row_array(args, 0), 2 * kRowLeading, 0.0f);
    double_rows(row_array(args, 0), row_array(args, 1));
  };
  const TuneResult r = tune(bench, kernel);
  CHECK(r.count(CandidateStatus::measured) == 3);
  CHECK(contains(find(r, {8, 0}).reason, "element 5 of argument 0, in the padding after row 0"));
}

TEST_CASE("arrays of 8-bit floats are verified by their values", "[runtime][rows]") {
  KernelDefinition kernel = doubling();
  kernel.arguments = {"__nv_fp8_e4m3*", "const float*", "int"};
  kernel.tolerance = {.relative = 0.0625, .absolute = 0.01};
  kernel.workload = [](std::span<const std::int64_t> p, Workload& w) {
    const auto n = static_cast<std::size_t>(p[0]);
    // A scale is an input like any other, of an interval without zero.
    w.output<float8_e4m3>(n).input<float>(n, {0.5, 2}).scalar<int>(static_cast<int>(n));
  };
  const auto convert = [](float8_e4m3* y, const float* x, int n, float scale) {
    for (int i = 0; i < n; ++i) y[i] = float8_e4m3(scale * x[i]);
  };
  kernel.reference = [=](std::span<const std::int64_t>, std::span<void* const> args) {
    convert(static_cast<float8_e4m3*>(args[0]), static_cast<const float*>(args[1]),
            *static_cast<int*>(args[2]), 1);
  };
  const auto with_scale = [=](float scale) {
    return [=](void** args) {
      convert(*static_cast<float8_e4m3**>(args[0]), row_array(args, 1), *static_cast<int*>(args[2]),
              scale);
    };
  };
  Bench bench;
  bench.device->compute = with_scale(1);
  bench.of(4).run = with_scale(1.01f);  // another neighbour, here and there
  bench.of(8).run = with_scale(1.3f);
  const TuneResult r = tune(bench, kernel);
  CHECK(find(r, {4, 0}).status == CandidateStatus::wrong_result);  // a step is 1/8 of it, at most
  CHECK(find(r, {8, 0}).status == CandidateStatus::wrong_result);
  kernel.tolerance.relative = 0.125;
  CHECK(find(tune(bench, kernel), {4, 0}).status == CandidateStatus::measured);
  kernel.arguments[0] = "__nv_fp8_e5m2*";
  CHECK(contains(message([&] { tune(bench, kernel); }), "argument 0 of fp8_e4m3"));
}
