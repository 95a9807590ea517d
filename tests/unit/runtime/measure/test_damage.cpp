// Candidates that write what they may not: inputs, and what lies around arrays.
#include <atomic>
#include <cstdint>
#include <limits>
#include <utility>

#include "kiln_test.hpp"
#include "runtime/measure/device_workload.hpp"
#include "unit/runtime/tune/tuner_fixture.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

float* output(void** args) { return *static_cast<float**>(args[0]); }
float* input(void** args) { return *static_cast<float**>(args[1]); }

/// Computes what is right, then does this.
std::function<void(void**)> and_then(std::function<void(void**)> more) {
  return [more = std::move(more)](void** args) {
    compute_doubling(args);
    more(args);
  };
}

/// Checks that of doubling()'s four candidates only a = `culprit` is out, for this reason.
void check_blamed(const TuneResult& r, int culprit, const std::string& reason) {
  for (const Candidate& c : r.candidates) {
    CAPTURE(r.describe(c), c.reason);
    if (c.config[0] != culprit) {
      CHECK(c.status == CandidateStatus::measured);
      continue;
    }
    CHECK(c.status == CandidateStatus::wrong_result);
    CHECK(contains(c.reason, reason));
    CHECK(c.samples.empty());
    CHECK(c.max_error == std::numeric_limits<double>::infinity());
  }
  CHECK(r.winner().config[0] != culprit);
}

}  // namespace

TEST_CASE("a candidate that writes an input is out, and no other", "[runtime][damage]") {
  for (const bool digests : {false, true})
    for (const int culprit : {1, 2, 4, 8}) {  // 2 is the default
      Bench bench;
      bench.device->has_digests = digests;
      bench.seconds(culprit, 1e-6);
      bench.of(culprit).run = and_then([](void** args) { input(args)[7] = 5; });
      check_blamed(tune(bench, doubling()), culprit,
                   "wrote element 7 of argument 1, an input: 5 ins");
    }
}

TEST_CASE("where the device computes digests, right candidates cost no downloads",
          "[runtime][damage]") {
  constexpr std::int64_t n = 1 << 20;
  const auto downloaded = [](bool digests) {
    Bench bench;
    bench.device->has_digests = digests;
    const TuneResult r = tune(bench, doubling(), {}, nullptr, n);
    CHECK(r.count(CandidateStatus::measured) == 4);
    return static_cast<double>(bench.device->downloaded) / (n * sizeof(float));
  };
  // The reference's input, the first candidate's output; guard zones of 64 KiB, many times.
  CHECK(downloaded(true) < 4);
  CHECK(downloaded(false) > 8);
}

TEST_CASE("outputs that are equal in their bits are judged once", "[runtime][damage]") {
  Bench bench;
  bench.device->has_digests = true;
  KernelDefinition kernel = doubling({1, 2, 4, 8, 16});
  std::atomic<int> judged{0};
  kernel.check = [&](std::span<const std::int64_t>, std::span<void* const> got,
                     std::span<void* const> expected) -> std::string {
    ++judged;
    const float error = static_cast<float*>(got[0])[3] - static_cast<float*>(expected[0])[3];
    return error == 0 ? "" : "element 3 is off";
  };
  for (const int wrong : {4, 8})
    bench.of(wrong).run = and_then([](void** args) { output(args)[3] += 1; });
  const TuneResult r = tune(bench, kernel);
  CHECK(r.count(CandidateStatus::measured) == 3);
  CHECK(find(r, {4, 0}).reason == "element 3 is off");
  CHECK(find(r, {8, 0}).reason == "element 3 is off");
  CHECK(judged == 2);
}

TEST_CASE("without a reference a default that writes an input defines nothing",
          "[runtime][damage]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  kernel.reference = nullptr;
  bench.of(2).run = and_then([](void** args) { input(args)[7] = 5; });
  check_blamed(tune(bench, kernel), 2, "argument 1, an input");
}

TEST_CASE("without a reference the second launch is looked at, too", "[runtime][damage]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  kernel.reference = nullptr;
  bench.of(2).run = and_then([n = 0](void** args) mutable {
    if (++n == 2) input(args)[7] = 5;
  });
  check_blamed(tune(bench, kernel), 2, "argument 1, an input");
}

TEST_CASE("a candidate that writes around an array is out, and the others find it whole",
          "[runtime][damage]") {
  struct Wild {
    std::function<void(void**)> write;
    const char* reason;
  };
  const std::vector<Wild> all = {
      {[](void** a) { output(a)[100] = 9; },
       "wrote outside argument 0, after its 100 elements: element 100"},
      {[](void** a) { output(a)[-1] = 1; },
       "wrote outside argument 0, before its 100 elements: element -1"},
      {[](void** a) { reinterpret_cast<char*>(output(a))[-5] = 1; }, "element -2"},
      {[](void** a) { output(a)[16000] = 1; }, "element 16000"},
      {[](void** a) { output(a)[-16000] = 1; }, "element -16000"},
      {[](void** a) { input(a)[100] = 9; }, "argument 1, after its 100 elements: element 100"},
      {[](void** a) { std::fill_n(output(a) + 100, 64, 0.0f); }, "element 100"},
  };
  for (const Wild& wild : all) {
    Bench bench;
    bench.seconds(1, 1e-6);
    bench.of(1).run = and_then(wild.write);
    check_blamed(tune(bench, doubling()), 1, wild.reason);
  }
}

TEST_CASE("in/out arrays have surroundings, too", "[runtime][damage]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  kernel.workload = [](std::span<const std::int64_t> p, Workload& w) {
    const auto n = static_cast<std::size_t>(p[0]);
    w.in_out<float>(n).input<float>(n).scalar<int>(static_cast<int>(n));
  };
  bench.of(4).run = and_then([](void** args) { output(args)[-3] = 1; });
  check_blamed(tune(bench, kernel), 4, "argument 0, before its 100 elements: element -3");
  Bench other;
  other.of(4).run = and_then([](void** args) { input(args)[0] = 1; });
  check_blamed(tune(other, kernel), 4, "wrote element 0 of argument 1");
}

TEST_CASE("arrays of bytes", "[runtime][damage]") {
  KernelDefinition kernel = doubling();
  kernel.arguments = {"unsigned char*", "const unsigned char*", "int"};
  kernel.workload = [](std::span<const std::int64_t> p, Workload& w) {
    const auto n = static_cast<std::size_t>(p[0]);
    w.output<std::uint8_t>(n).input<std::uint8_t>(n, {0, 200}).scalar<int>(static_cast<int>(n));
  };
  const auto copy = [](std::uint8_t* y, const std::uint8_t* x, int n) { std::copy_n(x, n, y); };
  kernel.reference = [copy](std::span<const std::int64_t>, std::span<void* const> args) {
    copy(static_cast<std::uint8_t*>(args[0]), static_cast<const std::uint8_t*>(args[1]),
         *static_cast<int*>(args[2]));
  };
  const auto bytes = [](void* argument) { return *static_cast<std::uint8_t**>(argument); };
  for (const int value : {0, 1, 127, 128, 255}) {
    Bench bench;
    const auto right = [=](void** args) {
      copy(bytes(args[0]), bytes(args[1]), *static_cast<int*>(args[2]));
    };
    bench.device->compute = right;
    bench.of(1).run = [=](void** args) {
      right(args);
      bytes(args[0])[100] = static_cast<std::uint8_t>(value);
    };
    check_blamed(tune(bench, kernel), 1, "argument 0, after its 100 elements: element 100");
    bench.of(1).run = [=](void** args) {
      right(args);
      bytes(args[1])[99] ^= 1;
    };
    check_blamed(tune(bench, kernel), 1, "wrote element 99 of argument 1");
  }
}

TEST_CASE("arrays without elements stay null, and harm nobody", "[runtime][damage]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  kernel.arguments.push_back("float*");
  kernel.arguments.push_back("const float*");
  const auto workload = kernel.workload;
  kernel.workload = [workload](std::span<const std::int64_t> p, Workload& w) {
    workload(p, w);
    w.output<float>(0).input<float>(0);
  };
  bench.device->compute = [](void** args) {
    compute_doubling(args);
    if (*static_cast<float**>(args[3]) || *static_cast<float**>(args[4]))
      throw EnvironmentError("not null");
  };
  for (const std::int64_t cache : {0, 100'000}) {
    bench.device->info().limits.l2_bytes = cache;
    CHECK(tune(bench, kernel).count(CandidateStatus::measured) == 4);
  }
}

TEST_CASE("an input that a kernel puts back itself is its own business", "[runtime][damage]") {
  Bench bench;
  bench.seconds(8, 1e-6);
  bench.of(8).run = and_then([](void** args) {
    const float before = input(args)[3];
    input(args)[3] = 1e9f;
    input(args)[3] = before;
  });
  CHECK(tune(bench, doubling()).winner().config[0] == 8);
}

TEST_CASE("a launch that fails leaves no damage to the next", "[runtime][damage]") {
  Bench bench;
  bench.of(1).run = [](void** args) {
    for (int i = 0; i < 100; ++i) input(args)[i] = 0;
    output(args)[-1] = 0;
    throw EnvironmentError("an assertion failed");
  };
  const TuneResult r = tune(bench, doubling());
  CHECK(find(r, {1, 0}).status == CandidateStatus::launch_failed);
  CHECK(r.count(CandidateStatus::measured) == 3);
  CHECK(r.warnings.empty());
}

TEST_CASE("a reference may use its inputs as scratch", "[runtime][damage]") {
  Bench bench;
  KernelDefinition kernel = doubling();
  const auto reference = kernel.reference;
  kernel.reference = [reference](std::span<const std::int64_t> p, std::span<void* const> args) {
    reference(p, args);
    static_cast<float*>(args[1])[5] = 77;
  };
  CHECK(tune(bench, kernel).count(CandidateStatus::measured) == 4);
}

TEST_CASE("a candidate that writes an input only after a while is found while it is timed",
          "[runtime][damage]") {
  for (const std::int64_t cache : {0, 100'000})  // one copy; many
    for (const bool outside : {false, true})
      for (const auto& [culprit, digests] :
           {std::pair{2, false}, {8, false}, {2, true}, {8, true}}) {
        CAPTURE(cache, outside, culprit, digests);
        Bench bench;
        bench.device->info().limits.l2_bytes = cache;
        bench.device->has_digests = digests;
        bench.seconds(culprit, 1e-4);
        int launches = 0;
        bench.of(culprit).run = and_then([&](void** args) {
          if (++launches <= 2) return;
          (outside ? output(args)[100] : input(args)[7]) = 5;
        });
        // Between the copies of an array nobody looks.
        const TuneResult r = tune(bench, doubling());
        for (const Candidate& c : r.candidates) {
          CAPTURE(r.describe(c), c.reason);
          if (c.config[0] != culprit) {
            CHECK(c.status == CandidateStatus::measured);
          } else if (!outside || cache == 0) {
            CHECK(c.status == CandidateStatus::wrong_result);
            CHECK(contains(c.reason, "while it was timed, wrote "));
            CHECK(contains(c.reason, outside ? "outside argument 0, after" : "element 7"));
            CHECK(r.winner().config[0] != culprit);
          }
        }
      }
}

TEST_CASE("a candidate that writes an input only in the final does not win it",
          "[runtime][damage]") {
  Bench bench;
  bench.seconds(8, 0.8e-3);
  int launches = 0;
  bench.of(8).run = and_then([&](void** args) {
    if (++launches > 30) input(args)[7] = 5;  // a race makes 1 + 8 + 16 at most
  });
  check_blamed(tune(bench, doubling()), 8, "while it was timed, wrote element 7 of argument 1");
}

TEST_CASE("a candidate that fails while it is timed takes the blame for what is damaged",
          "[runtime][damage]") {
  Bench bench;
  bench.seconds(8, 1e-4);
  int launches = 0;
  bench.of(8).run = and_then([&](void** args) {
    if (++launches != 3) return;
    input(args)[7] = 5;
    throw EnvironmentError("an assertion failed");
  });
  const TuneResult r = tune(bench, doubling());
  CHECK(find(r, {8, 0}).status == CandidateStatus::launch_failed);
  CHECK(r.count(CandidateStatus::measured) == 3);
  CHECK(r.warnings.empty());
}

TEST_CASE("a candidate that fails while it is timed alone is out", "[runtime][damage]") {
  const bool in_finals = GENERATE(false, true);
  CAPTURE(in_finals);
  Bench bench;
  bench.seconds(8, 0.8e-3);
  bench.seconds(4, 0.8e-3);
  const int first = in_finals ? 31 : 3;  // a race makes 1 + 8 + 16 at most
  int launches = 0;
  bool damaged = false, failed = false;
  bench.of(8).run = and_then([&](void** args) {
    if (++launches < first) return;
    input(args)[7] = 5;
    damaged = true;
  });
  bench.of(4).run = and_then([&](void** args) {
    // The input is whole again: the candidate is timed alone.
    if (!damaged || input(args)[7] == 5 || std::exchange(failed, true)) return;
    throw EnvironmentError("an assertion failed");
  });
  const TuneResult r = tune(bench, doubling());
  CHECK(failed);
  CHECK(find(r, {4, 0}).status == CandidateStatus::launch_failed);
  CHECK(contains(find(r, {4, 0}).reason, "an assertion failed"));
  CHECK(find(r, {8, 0}).status == CandidateStatus::wrong_result);
  CHECK(r.count(CandidateStatus::measured) == 2);
}

TEST_CASE("damage that does not come again is told, and put right", "[runtime][damage]") {
  Bench bench;
  bench.seconds(8, 1e-4);
  int launches = 0;
  bench.of(8).run = and_then([&](void** args) {
    if (++launches == 3) input(args)[7] = 5;
  });
  const TuneResult r = tune(bench, doubling());
  CHECK(r.count(CandidateStatus::measured) == 4);
  REQUIRE(r.warnings.size() == 1);
  CHECK(contains(r.warnings[0], "a candidate wrote element 7 of argument 1, an input"));
  CHECK(contains(r.warnings[0], "while it was timed"));
}

TEST_CASE("copies are restored, each of them", "[runtime][damage]") {
  Bench bench;
  bench.device->info().limits.l2_bytes = 10'000;
  const KernelDefinition kernel = doubling();
  const Values problem{100};
  runtime::DeviceWorkload workload(kernel, problem, bench.device, 1);
  workload.keep_cold(true);
  REQUIRE(workload.copies() > 4);
  const std::vector<float> whole(input(workload.arguments()), input(workload.arguments()) + 100);
  CHECK(workload.repair().empty());
  workload.prepare({}, 0, 1);
  for (const std::size_t copy : {std::size_t{1}, std::size_t{3}, workload.copies() - 1})
    input(workload.arguments(copy))[copy] = 1e9f;
  CHECK(contains(workload.repair(), "wrote element 1 of argument 1, an input: 1000000000 instead"));
  for (std::size_t copy = 0; copy < workload.copies(); ++copy)
    CHECK(std::equal(whole.begin(), whole.end(), input(workload.arguments(copy))));
  CHECK(workload.repair().empty());
  // Behind the last copy.
  workload.prepare({}, 0, 1);
  output(workload.arguments(workload.copies() - 1))[128] = 1;
  CHECK(contains(workload.repair(), "outside argument 0, after its 100 elements: element 128"));
  CHECK(workload.repair().empty());
}

TEST_CASE("a handle's verification finds it, too", "[runtime][damage]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(handle.verify({50}).right);
  const auto found = [&](std::function<void(void**)> more) {
    process.of(static_cast<int>(handle.config({50})[0])).run = and_then(std::move(more));
    const Verification v = handle.verify({50});
    CHECK_FALSE(v.right);
    return v.why;
  };
  CHECK(contains(found([](void** args) { input(args)[7] = 5; }), "element 7 of argument 1"));
  CHECK(contains(found([](void** args) { output(args)[50] = 5; }), "after its 50 elements"));
}
