// Kernels whose outputs are judged by a function of their own, or may differ in a few places.
#include <cmath>
#include <stdexcept>
#include <tuple>

#include "kiln_test.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "unit/runtime/tune/tuner_fixture.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// doubling(), but the first `wrong` elements are off by one.
std::function<void(void**)> off_in(int wrong) {
  return [wrong](void** args) {
    compute_doubling(args);
    for (int i = 0; i < wrong; ++i) (*static_cast<float**>(args[0]))[i] += 1;
  };
}

}  // namespace

TEST_CASE("a share of mismatches is permitted, and no more", "[runtime][check]") {
  KernelDefinition kernel = doubling();
  kernel.tolerance.mismatches = 0.01;
  Bench bench;
  bench.seconds(4, 1e-6);
  bench.of(4).run = off_in(10);
  bench.of(8).run = off_in(17);
  const TuneResult r = tune(bench, kernel, {}, nullptr, 1000);
  CHECK(r.winner().config[0] == 4);
  CHECK(r.winner().max_error > 1);
  const Candidate& wrong = find(r, {8, 0});
  CHECK(wrong.status == CandidateStatus::wrong_result);
  CHECK(contains(wrong.reason, "(17 of 1000 outside the tolerance, 10 allowed)"));
  // Rounded down: of 99 elements none may differ.
  bench.of(4).run = off_in(1);
  CHECK(contains(find(tune(bench, kernel, {}, nullptr, 99), {4, 0}).reason, "(1 of 99 differ)"));
}

TEST_CASE("a share is of each output, and as exact as it is written", "[runtime][check]") {
  KernelDefinition kernel = doubling();
  kernel.tolerance.mismatches = 0.29;
  Bench bench;
  bench.of(4).run = off_in(29);
  bench.of(8).run = off_in(30);
  const TuneResult r = tune(bench, kernel);
  CHECK(find(r, {4, 0}).status == CandidateStatus::measured);
  CHECK(find(r, {8, 0}).status == CandidateStatus::wrong_result);
}

TEST_CASE("a check judges instead of the tolerance", "[runtime][check]") {
  KernelDefinition kernel = doubling();
  const auto sum_is_right = [](std::span<const std::int64_t> problem, std::span<void* const> got,
                               std::span<void* const> expected) -> std::string {
    double sum = 0;
    for (int i = 0; i < problem[0]; ++i)
      sum += static_cast<float*>(got[0])[i] - static_cast<float*>(expected[0])[i];
    if (got[1] != expected[1] || *static_cast<int*>(got[2]) != problem[0]) return "inputs differ";
    return std::abs(sum) < 0.5 ? "" : "the sum is off by " + std::to_string(std::lround(sum));
  };
  kernel.check = sum_is_right;
  Bench bench;
  bench.seconds(4, 1e-6);
  bench.of(4).run = [](void** args) {  // wrong by any tolerance, but in sum
    compute_doubling(args);
    (*static_cast<float**>(args[0]))[0] += 100;
    (*static_cast<float**>(args[0]))[1] -= 100;
  };
  bench.of(8).run = off_in(3);
  const TuneResult r = tune(bench, kernel);
  CHECK(r.winner().config[0] == 4);
  CHECK(find(r, {8, 0}).status == CandidateStatus::wrong_result);
  CHECK(find(r, {8, 0}).reason == "the sum is off by 3");
  CHECK(r.count(CandidateStatus::measured) == 3);

  SECTION("the norm of the error is known, and judged by the tolerance") {
    CHECK(r.winner().norm_error > 1);
    kernel.tolerance.norm = 0.01;
    const TuneResult judged = tune(bench, kernel);
    CHECK(judged.norm_permitted == 0.01);
    CHECK(contains(find(judged, {4, 0}).reason, "all elements of argument 0 together differ"));
    CHECK(judged.winner().norm_error == 0);
  }
  SECTION("damage is found all the same") {
    bench.of(4).run = [](void** args) {
      compute_doubling(args);
      (*static_cast<float**>(args[1]))[0] = 100;
    };
    CHECK(contains(find(tune(bench, kernel), {4, 0}).reason, "argument 1, an input"));
  }
  SECTION("an exception is a reason") {
    kernel.check = [](auto, auto got, auto) -> std::string {
      if (static_cast<float*>(got[0])[0] != 2 * static_cast<float*>(got[1])[0])
        throw std::runtime_error("it is odd");
      return "";
    };
    const TuneResult odd = tune(bench, kernel);
    CHECK(contains(find(odd, {8, 0}).reason, "threw an exception: it is odd"));
    CHECK(odd.count(CandidateStatus::measured) == 2);
  }
}

TEST_CASE("whatever a check throws is a reason against the candidate", "[runtime][check]") {
  KernelDefinition kernel = doubling();
  kernel.check = [](auto, auto got, auto) -> std::string {
    if (static_cast<float*>(got[0])[0] != 2 * static_cast<float*>(got[1])[0]) throw 7;
    return "";
  };
  Bench bench;
  bench.of(8).run = off_in(1);
  const TuneResult r = tune(bench, kernel);
  CHECK(find(r, {8, 0}).status == CandidateStatus::wrong_result);
  CHECK(find(r, {8, 0}).reason == runtime::kForeignException);
  CHECK(r.count(CandidateStatus::measured) == 3);
}

TEST_CASE("a check needs no reference, and sees in/out arrays as they were", "[runtime][check]") {
  KernelDefinition kernel = doubling();
  kernel.reference = nullptr;
  kernel.arguments = {"float*", "int"};
  kernel.workload = [](std::span<const std::int64_t> p, Workload& w) {
    w.in_out<float>(static_cast<std::size_t>(p[0])).scalar<int>(static_cast<int>(p[0]));
  };
  kernel.check = [](auto problem, auto got, auto before) -> std::string {
    for (int i = 0; i < problem[0]; ++i)
      if (static_cast<float*>(got[0])[i] != 2 * static_cast<float*>(before[0])[i])
        return "element " + std::to_string(i) + " is not doubled";
    return "";
  };
  Bench bench;
  bench.device->compute = [](void** args) {
    for (int i = 0; i < *static_cast<int*>(args[1]); ++i) (*static_cast<float**>(args[0]))[i] *= 2;
  };
  bench.of(2).run = [](void**) {};  // the default: it defines nothing
  const TuneResult r = tune(bench, kernel);
  CHECK(r.default_candidate().reason == "element 0 is not doubled");
  CHECK(r.count(CandidateStatus::measured) == 3);

  Directory directory;
  Process process(directory.path());
  process.device->compute = bench.device->compute;
  const Runtime runtime = process.runtime();
  CHECK(runtime.tuned(kernel).verify({10}).right);
  kernel.check = nullptr;
  CHECK(contains(message([&] { runtime.tuned(kernel).verify({10}); }), "`check`"));
}

TEST_CASE("a typed kernel's check has the arguments' types", "[runtime][check]") {
  Typed kernel = typed_doubling();
  int asked = 0;
  kernel.check = [&asked](const auto& problem, const auto& got, const auto& expected) {
    const auto& [y, x, n] = got;
    ++asked;
    if (n != problem.n || x != std::get<1>(expected)) return std::string("other inputs");
    for (int i = 0; i < n; ++i)
      if (std::abs(y[i] - std::get<0>(expected)[i]) > 1 || y[i] - 2 * x[i] > 1)
        return "element " + std::to_string(i);
    return std::string();
  };
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  handle.tune({50});
  CHECK(asked == 4);
  CHECK(handle.verify({50}).right);
  for (const int a : {1, 2, 4, 8})
    (*process.script)[typed_entry(a)].run = [](void** args) {
      compute_doubling(args);
      (*static_cast<float**>(args[0]))[5] += 3;
    };
  const Verification wrong = handle.verify({50});
  CHECK_FALSE(wrong.right);
  CHECK(wrong.why == "element 5");
}
