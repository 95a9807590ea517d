// The space of the kernel that sorts tokens by expert.
#include "kiln/detail/launch_plan.hpp"
#include "kiln/registry.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/tune/best_guess.hpp"
#include "space_limits.hpp"
#include "template_test.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("any number of experts has a default that sorts by them", "[templates]") {
  const KernelDefinition k = shipped_kernels().make("sort_by_expert");
  DeviceInfo device;
  for (const char* arch : {"sm_80", "sm_90a", "host"}) {
    device.target = Target::parse(arch);
    device.limits = device.target.kind == Target::Kind::host ? host() : gpu(90, 228);
    for (const std::int64_t groups : {0, 1, 8, 384, 768, 769, 4096})
      for (const std::int64_t count : {0, 1, 1024, 1025, 40000, 1 << 20}) {
        const Values problem{count, 8, groups};
        const Values config = runtime::untuned_config(k, problem, device);
        INFO(k.space.describe(config) << " for " << k.describe_problem(problem) << " on " << arch);
        CHECK(k.space.violated(config, problem, device.limits) == nullptr);
        CHECK(detail::plan(k, config, problem, device.limits).obstacle(device.limits).empty());
      }
  }
  // Counts are tuned for a number of tokens whose choices can be counted.
  CHECK(k.bucketed(Values{1000, 8, 4096}) == Values{1024, 8, 4096});
  CHECK(k.bucketed(Values{200'000'000, 8, 8}) == Values{268'435'455, 8, 8});
  CHECK(k.bucketed(Values{268'435'455, 8, 8}) == Values{268'435'455, 8, 8});
  CHECK(k.bucketed(Values{5, 0, 8}) == Values{8, 0, 8});
  for (const Values& problem : {Values{-1, 8, 8}, Values{8, -1, 8}, Values{8, 8, -1},
                                Values{8, 8, 4097}, Values{268'435'456, 8, 8}})
    CHECK_THROWS_AS(k.bucketed(problem), UserError);
}
