#include <cmath>
#include <limits>

#include "kiln/occupancy.hpp"
#include "kiln/registry.hpp"
#include "kiln_test.hpp"
#include "runtime/tune/cost_model.hpp"
#include "unit/runtime/fake_kernel.hpp"

using kiln::DeviceInfo;
using kiln::KernelDefinition;
using kiln::Launch;
using kiln::Values;
using kiln::codegen::ResourceUsage;
using kiln::runtime::CostModel;

namespace {

using Span = std::span<const std::int64_t>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

DeviceInfo hopper() {
  DeviceInfo info;
  info.limits = kiln::limits_of(90, 132, 50 << 20);
  return info;
}

DeviceInfo host(int cores = 8) {
  DeviceInfo info;
  info.limits.multiprocessors = cores;
  info.limits.shared_per_block_optin = 227 * 1024;
  return info;
}

/// Config: blocks, threads, shared bytes.
KernelDefinition launcher(double flops = 0, double bytes = 0) {
  KernelDefinition k;
  k.name = "launcher";
  k.launch = [](Span c, Span) {
    return Launch{
        {static_cast<unsigned>(c[0])}, {static_cast<unsigned>(c[1])}, static_cast<unsigned>(c[2])};
  };
  k.flops = [=](Span) { return flops; };
  k.bytes = [=](Span) { return bytes; };
  return k;
}

double seconds(const KernelDefinition& kernel, const DeviceInfo& device, Values config,
               const ResourceUsage& usage = {}) {
  return CostModel(kernel, Values{}, device).seconds(config, usage);
}

}  // namespace

TEST_CASE("what cannot be launched costs infinitely much", "[runtime][cost]") {
  for (const DeviceInfo& device : {hopper(), host()}) {
    const KernelDefinition k = launcher(1e9, 1e9);
    CHECK(seconds(k, device, {1, 0, 0}) == kInfinity);
    CHECK(seconds(k, device, {1, 1025, 0}) == kInfinity);
    CHECK(seconds(k, device, {1, 32, 300 << 20}) == kInfinity);
    CHECK(std::isfinite(seconds(k, device, {1, 32, 0})));
    CHECK(seconds(k, device, {0, 32, 0}) < seconds(k, device, {1, 32, 0}));  // nothing to do
    CHECK(seconds(k, device, {1, 256, 0}, {.max_threads = 128}) == kInfinity);
  }
  CHECK(seconds(launcher(), hopper(), {1, 1024, 0}, {.registers = 65}) == kInfinity);
}

TEST_CASE("a device with reserved multiprocessors is as fast as a smaller one", "[runtime][cost]") {
  const KernelDefinition k = launcher(1e9, 1e9);
  for (DeviceInfo device : {hopper(), host(8)}) {
    DeviceInfo smaller = device;
    const DeviceInfo whole = device;
    const int half = whole.limits.multiprocessors / 2;
    device.limits.reserved_multiprocessors = smaller.limits.multiprocessors = half;
    const Values config{1000, 256, 0};
    CHECK(seconds(k, device, config) == seconds(k, smaller, config));
    CHECK(seconds(k, device, config) > seconds(k, whole, config));
  }
}

TEST_CASE("a last wave of few blocks costs a wave", "[runtime][cost]") {
  // 1024 threads: two blocks per multiprocessor, 264 per wave.
  const double work = 1e9;
  const auto per_block = [&](int blocks) {
    const KernelDefinition k = launcher(work * blocks, 0);
    return seconds(k, hopper(), {blocks, 1024, 0}) / blocks;
  };
  CHECK(per_block(265) > 1.3 * per_block(264));
  CHECK(per_block(264) == Approx(per_block(528)).epsilon(0.01));
  // Half a wave is one block per multiprocessor, which is a half, not a whole wave of work.
  CHECK(per_block(132) == Approx(per_block(264)).epsilon(0.01));
  CHECK(per_block(1) > 100 * per_block(132));
}

TEST_CASE("a host's last round costs a round", "[runtime][cost]") {
  const auto per_block = [](int blocks) {
    return seconds(launcher(1e7 * blocks, 0), host(8), {blocks, 64, 0}) / blocks;
  };
  CHECK(per_block(9) > 1.7 * per_block(8));
  CHECK(per_block(8) == Approx(per_block(16)).epsilon(0.05));
  // Blocks have a price, and a working set beyond the first-level cache, too.
  CHECK(seconds(launcher(0, 1e6), host(), {100000, 64, 0}) >
        seconds(launcher(0, 1e6), host(), {1000, 64, 0}));
  CHECK(seconds(launcher(0, 1e8), host(), {8, 64, 0}) >
        seconds(launcher(0, 1e8), host(), {8000, 64, 0}));
}

TEST_CASE("latency wants warps", "[runtime][cost]") {
  // The same bytes, moved by blocks of which few or many share a multiprocessor.
  const KernelDefinition k = launcher(0, 1e9);
  const double crowded = seconds(k, hopper(), {132 * 64, 256, 0});
  CHECK(seconds(k, hopper(), {132 * 64, 256, 200 << 10}) > 1.5 * crowded);
  CHECK(seconds(k, hopper(), {132 * 64, 256, 0}, {.registers = 255}) > 1.2 * crowded);
  // A block of 33 threads takes the place of one of 64.
  CHECK(seconds(launcher(1e12, 0), hopper(), {13200, 33, 0}) >
        1.5 * seconds(launcher(1e12, 0), hopper(), {13200, 64, 0}));
}

TEST_CASE("spills cost", "[runtime][cost]") {
  const KernelDefinition k = launcher(1e9, 1e9);
  const double clean = seconds(k, hopper(), {1000, 128, 0}, {.registers = 64});
  double before = clean;
  for (int spilled : {4, 64, 1024}) {
    const double cost = seconds(k, hopper(), {1000, 128, 0},
                                {.registers = 64, .spill_stores = spilled, .spill_loads = spilled});
    CHECK(cost > before);
    CHECK(std::isfinite(cost));
    before = cost;
  }
}

TEST_CASE("a kernel's own model goes first", "[runtime][cost]") {
  KernelDefinition k = launcher(1e9, 1e9);
  const double general = seconds(k, hopper(), {100, 128, 0});
  k.cost = [](Span c, Span, const kiln::DeviceLimits& d) {
    return c[1] == 64 ? kNan : c[1] == 96 ? kInfinity : -1.0 * d.multiprocessors;
  };
  CHECK(seconds(k, hopper(), {100, 128, 0}) == -132);  // any unit that grows
  // Spills make it worse in any unit.
  CHECK(seconds(k, hopper(), {100, 128, 0}, {.registers = 8, .spill_stores = 100}) > -132);
  CHECK(seconds(k, hopper(), {100, 96, 0}) == kInfinity);
  CHECK(seconds(k, hopper(), {100, 64, 0}) > 0);             // left to the general model
  CHECK(seconds(k, hopper(), {100, 2000, 0}) == kInfinity);  // what cannot be cannot be
  k.cost = nullptr;
  CHECK(seconds(k, hopper(), {100, 128, 0}) == general);
}

TEST_CASE("whatever a kernel says of its work, the answer is a number", "[runtime][cost]") {
  for (double said : {0.0, -1.0, kNan, kInfinity, 1e300, 1e-300})
    for (const DeviceInfo& device : {hopper(), host(), host(0)})
      for (const Values& config :
           {Values{1, 1, 0}, Values{1 << 30, 1024, 0}, Values{7, 33, 40000}}) {
        const double cost = seconds(launcher(said, said), device, config);
        CAPTURE(said, cost);
        CHECK(std::isfinite(cost));
        CHECK(cost >= 0);
      }
  KernelDefinition silent = launcher();
  silent.flops = nullptr;
  silent.bytes = nullptr;
  CHECK(std::isfinite(seconds(silent, hopper(), {100, 128, 0})));
  CHECK(std::isfinite(seconds(silent, host(), {100, 128, 0})));
}

TEST_CASE("every allowed config of a shipped kernel has a cost", "[runtime][cost][slow]") {
  const kiln::Registry shipped = kiln::shipped_kernels();
  for (const auto& known : shipped.kernels())
    for (const std::string& type : known.types)
      for (const DeviceInfo& device : {hopper(), host(2)}) {
        const KernelDefinition k = shipped.make(known.name, type);
        Values problem;
        for (const std::string& field : k.problem_fields)
          problem.push_back(k.problem_fields.size() == 1                 ? 1 << 22
                            : field.find("_dim") != field.npos           ? 128
                            : field.find("heads") != field.npos          ? 32
                            : field == "groups" || field == "block_size" ? 16
                                                                         : 4096);
        const CostModel model(k, problem, device);
        const auto& parameters = k.space.parameters();
        std::vector<std::size_t> at(parameters.size());
        std::size_t allowed = 0, finite = 0, positive = 0;
        double least = kInfinity, most = 0;
        const auto look = [&](const Values& config) {
          if (k.space.violated(config, problem, device.limits)) return;
          const double cost = model.seconds(config);
          ++allowed;
          finite += std::isfinite(cost) ? 1 : 0;
          positive += cost > 0 ? 1 : 0;
          least = std::min(least, cost);
          most = std::max(most, cost);
        };
        if (k.configs)
          for (const Values& config : k.configs(problem, device.limits)) look(config);
        for (bool more = !k.configs; more;) {
          Values config;
          for (std::size_t i = 0; i < at.size(); ++i) config.push_back(parameters[i].values[at[i]]);
          look(config);
          more = false;
          for (std::size_t i = 0; i < at.size() && !more; ++i) {
            more = ++at[i] < parameters[i].values.size();
            if (!more) at[i] = 0;
          }
        }
        CAPTURE(known.name, type, device.limits.compute_capability, allowed);
        CHECK(allowed > 0);
        CHECK(finite == allowed);
        CHECK(positive == allowed);
        CHECK(most > 1.01 * least);  // it tells configs apart
      }
}
