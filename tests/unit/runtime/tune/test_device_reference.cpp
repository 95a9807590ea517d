// Another implementation on the device as the reference, and what happens when it is wrong.
#include <map>

#include "runtime/tune/record.hpp"
#include "unit/runtime/tune/tuner_fixture.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

constexpr int kSmall = 10;

Digest digest_of(std::byte first) {
  Digest digest{};
  digest[0] = first;
  return digest;
}

int length_of(void** args) { return *static_cast<int*>(args[2]); }
float* results_of(void** args) { return *static_cast<float**>(args[0]); }

/// doubling(), whose config a = 1 is the reference; counts what the host's reference computes, by
/// size.
struct Trusting {
  Bench bench;
  KernelDefinition kernel = doubling();
  std::map<int, int> on_host;
  std::shared_ptr<runtime::TrustedReferences> known =
      std::make_shared<runtime::TrustedReferences>();

  Trusting() {
    kernel.reference = [this, right = kernel.reference](std::span<const std::int64_t> p,
                                                        std::span<void* const> args) {
      ++on_host[*static_cast<int*>(args[2])];
      right(p, args);
    };
    kernel.device_reference = {.config = "a=1", .problem = {{"n", kSmall}}};
    bench.of(8).run = [](void** args) {
      compute_doubling(args);
      results_of(args)[length_of(args) - 1] += 1;
    };
    bench.seconds(8, 1e-6);
  }

  TuneResult tune(std::int64_t n = 100) {
    kernel.validate();
    const TuneOptions options;
    const Values problem{n};
    runtime::KernelMaker maker(kernel, problem, bench.device, bench.builder, options.seed, known);
    return runtime::tune(maker, options, {}).result;
  }
  /// The host's reference decides, and one warning says so.
  void check_not_used(const std::string& why) {
    const TuneResult r = tune();
    CHECK(on_host[100] == 1);
    CHECK(find(r, {8, 0}).status == CandidateStatus::wrong_result);
    REQUIRE(r.warnings.size() >= 1);
    CAPTURE(r.warnings.front());
    CHECK(contains(r.warnings.front(), "the reference on the host is used"));
    CHECK(contains(r.warnings.front(), why));
    CHECK(find(r, {2, 0}).status == CandidateStatus::measured);
    CHECK(find(r, {4, 0}).status == CandidateStatus::measured);
  }
};

}  // namespace

TEST_CASE("a check of a reference may ask for another one", "[runtime][tune]") {
  runtime::TrustedReferences known;
  int checks = 0;
  const auto inner = [&] {
    ++checks;
    return std::string("not this one");
  };
  const auto outer = [&] { return known.verdict(digest_of(std::byte{2}), inner); };
  for (int i = 0; i < 2; ++i)
    CHECK(known.verdict(digest_of(std::byte{1}), outer) == "not this one");
  CHECK(checks == 1);
}

TEST_CASE("a reference on the device, once it is trusted, is all that large problems need",
          "[runtime][reference]") {
  Trusting t;
  const TuneResult r = t.tune();
  CHECK(t.on_host == std::map<int, int>{{kSmall, 1}});
  CHECK(r.warnings.empty());
  CHECK(r.count(CandidateStatus::measured) == 3);
  CHECK(contains(find(r, {8, 0}).reason, "element 99 of argument 0"));
  // It is tried once.
  t.tune(200);
  t.tune(300);
  CHECK(t.on_host == std::map<int, int>{{kSmall, 1}});
  // Another runtime tries it again; the small problem itself needs none.
  t.known = std::make_shared<runtime::TrustedReferences>();
  t.tune();
  CHECK(t.on_host[kSmall] == 2);
  t.tune(kSmall);
  CHECK(t.on_host == std::map<int, int>{{kSmall, 3}});
}

TEST_CASE("with flops, the reference on the device is for larger problems alone",
          "[runtime][reference]") {
  Trusting t;
  t.kernel.flops = [](std::span<const std::int64_t> p) { return static_cast<double>(p[0]); };
  t.tune(5);
  CHECK(t.on_host == std::map<int, int>{{5, 1}});
  t.tune(11);
  CHECK(t.on_host == std::map<int, int>{{5, 1}, {kSmall, 1}});
}

TEST_CASE("a reference on the device that is wrong is said so, for what", "[runtime][reference]") {
  Trusting t;
  t.bench.of(1).run = [](void** args) {
    compute_doubling(args);
    results_of(args)[2] += 1;
  };
  t.check_not_used("doubling with a=1,b=0, for n=10: element 2 of argument 0");
  CHECK(t.on_host[kSmall] == 1);
  // Nor is it tried again.
  const TuneResult again = t.tune(200);
  CHECK(contains(again.warnings.front(), "for n=10: element 2"));
  CHECK(t.on_host[kSmall] == 1);
  CHECK(t.on_host[200] == 1);
}

TEST_CASE("a reference on the device that fails is not used", "[runtime][reference]") {
  SECTION("it does not compile") {
    Trusting t;
    t.bench.of(1).compile_log = "error: no such type";
    t.check_not_used("no such type");
  }
  SECTION("it cannot be loaded") {
    Trusting t;
    t.bench.of(1).load_error = "not for this device";
    t.check_not_used("not for this device");
  }
  SECTION("it cannot be launched") {
    Trusting t;
    t.bench.of(1).launch_error = "refused";
    t.check_not_used("refused");
  }
  SECTION("the small problem has no data") {
    Trusting t;
    t.kernel.workload = [made = t.kernel.workload](std::span<const std::int64_t> p, Workload& w) {
      if (p[0] == kSmall) throw UserError("too small");
      made(p, w);
    };
    t.check_not_used("too small");
  }
  SECTION("it writes an input") {
    Trusting t;
    t.bench.of(1).run = [](void** args) {
      compute_doubling(args);
      (*static_cast<float**>(args[1]))[0] = 9;
    };
    t.check_not_used("an input");
  }
  SECTION("it fails for the large problem") {
    Trusting t;
    t.bench.of(1).run = [](void** args) {
      if (length_of(args) != kSmall) throw EnvironmentError("too large");
      compute_doubling(args);
    };
    t.check_not_used("too large");
  }
  SECTION("it leaves elements of the large problem unwritten") {
    Trusting t;
    t.bench.of(1).run = [](void** args) {
      const float kept = results_of(args)[50 % length_of(args)];
      compute_doubling(args);
      if (length_of(args) != kSmall) results_of(args)[50] = kept;
    };
    t.check_not_used("element 50 of argument 0");
  }
}

TEST_CASE("arrays are as they were when the host's reference follows the device's",
          "[runtime][reference]") {
  Trusting t;
  t.kernel.workload = [](std::span<const std::int64_t> p, Workload& w) {
    const auto n = static_cast<std::size_t>(p[0]);
    w.in_out<float>(n).input<float>(n).scalar<int>(static_cast<int>(n));
  };
  const auto add = [](float* y, const float* x, int n) {
    for (int i = 0; i < n; ++i) y[i] += x[i];
  };
  const auto launched = [=](void** args) {
    add(results_of(args), *static_cast<float**>(args[1]), length_of(args));
  };
  t.kernel.reference = [&, add](std::span<const std::int64_t>, std::span<void* const> args) {
    ++t.on_host[*static_cast<int*>(args[2])];
    add(static_cast<float*>(args[0]), static_cast<const float*>(args[1]),
        *static_cast<int*>(args[2]));
  };
  t.bench.device->compute = launched;
  t.bench.of(8).run = [=](void** args) {
    launched(args);
    results_of(args)[0] += 1;
  };
  int calls = 0;
  t.bench.of(1).run = [&, launched](void** args) {  // not the same twice
    launched(args);
    if (length_of(args) != kSmall) results_of(args)[1] += static_cast<float>(++calls);
  };
  t.check_not_used("element 1 of argument 0");
}

TEST_CASE("another kernel as the reference on the device", "[runtime][reference]") {
  Trusting t;
  auto plain = std::make_shared<KernelDefinition>(doubling({3}, 3));
  plain->name = "plain";
  plain->entry = "p";
  plain->workload = nullptr;
  plain->reference = nullptr;
  int launches = 0;
  (*t.bench.script)["p<3, 0>"].run = [&](void** args) {
    ++launches;
    compute_doubling(args);
  };
  t.kernel.device_reference = {.config = "", .problem = {{"n", kSmall}}, .kernel = plain};
  const TuneResult r = t.tune();
  CHECK(launches == 3);  // the small problem, and the large one twice
  CHECK(r.warnings.empty());
  CHECK(t.on_host == std::map<int, int>{{kSmall, 1}});
  CHECK(r.count(CandidateStatus::measured) == 3);
}

TEST_CASE("the reference on the device computes every draw", "[runtime][reference]") {
  Trusting t;
  t.kernel.draws = {1, 1};
  t.kernel.workload = [](std::span<const std::int64_t> p, Workload& w) {
    const auto n = static_cast<std::size_t>(p[0]) - w.draw();
    w.output<float>(n).input<float>(n).scalar<int>(static_cast<int>(n));
  };
  CHECK(t.tune().count(CandidateStatus::measured) == 3);
  CHECK(t.on_host == std::map<int, int>{{kSmall, 1}, {kSmall - 1, 1}});
  t.on_host.clear();
  int calls = 0;
  t.bench.of(1).run = [&](void** args) {
    compute_doubling(args);
    if (length_of(args) == 99) results_of(args)[5] = static_cast<float>(++calls);
  };
  const TuneResult r = t.tune();
  CHECK(t.on_host == std::map<int, int>{{100, 1}, {99, 1}});
  CHECK(contains(r.warnings.front(), "draw 1 of 2: element 5"));
}

TEST_CASE("a device that is lost with the reference is lost", "[runtime][reference]") {
  Trusting t;
  t.bench.of(1).launch_error = "device lost";
  CHECK_THROWS_AS(t.tune(), runtime::DeviceLost);
}

TEST_CASE("what was known is kept where the reference loses the device", "[runtime][reference]") {
  Trusting before, now;
  const TuneResult known = before.tune();
  now.bench.of(1).launch_error = "device lost";
  std::vector<TuneResult> saved;
  runtime::TuneContext context;
  context.prior = &known;
  context.save = [&](const TuneResult& result) { saved.push_back(result); };
  now.kernel.validate();
  const TuneOptions options;
  const Values problem{100};
  runtime::KernelMaker maker(now.kernel, problem, now.bench.device, now.bench.builder, 1);
  CHECK_THROWS_AS(runtime::tune(maker, options, context), runtime::DeviceLost);
  REQUIRE(saved.size() == 1);
  CHECK(saved[0].winner().config == known.winner().config);
  CHECK(saved[0].count(CandidateStatus::measured) == 3);
  CHECK_FALSE(saved[0].complete);
}

TEST_CASE("a reference on the device is in the key", "[runtime][reference]") {
  Trusting t;
  const auto key = [&] {
    return runtime::record_key(t.kernel, Values{100}, t.bench.device->info(), {});
  };
  const Key before = key();
  t.kernel.device_reference->config = "a=2";
  CHECK_FALSE(key() == before);
  t.kernel.device_reference.reset();
  CHECK_FALSE(key() == before);
}

TEST_CASE("references on the device that make no sense", "[runtime][reference]") {
  Trusting t;
  const auto refused = [&] { return message([&] { t.kernel.validate(); }); };
  CHECK(refused() == "nothing was thrown");
  t.kernel.device_reference->config = "a=3";
  CHECK(contains(refused(), "not among the values"));
  t.kernel.device_reference->config = "c=1";
  CHECK(contains(refused(), "unknown parameter 'c'"));
  t.kernel.device_reference->config = "";
  t.kernel.device_reference->problem = {{"m", 1}};
  CHECK(contains(refused(), "unknown problem field 'm'"));
  t.kernel.device_reference->problem = {};
  CHECK(contains(refused(), "'n' is missing"));
  t.kernel.device_reference->problem = {{"n", 1}};
  auto other = std::make_shared<KernelDefinition>(doubling());
  other->arguments.pop_back();
  t.kernel.device_reference->kernel = other;
  CHECK(contains(refused(), "other arguments"));
  t.kernel.device_reference->kernel = nullptr;
  t.kernel.reference = nullptr;
  CHECK(contains(refused(), "no `reference`"));
}

TEST_CASE("a typed kernel's reference on the device", "[runtime][reference]") {
  Typed typed = typed_doubling();
  std::map<int, int> on_host;
  typed.reference = [&](float* y, const float* x, int n) {
    ++on_host[n];
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
  };
  typed.device_reference = {.config = "a=1", .problem = {{"n", kSmall}}};
  Bench bench;
  CHECK(tune(bench, typed.definition()).warnings.empty());
  CHECK(on_host == std::map<int, int>{{kSmall, 1}});
}
