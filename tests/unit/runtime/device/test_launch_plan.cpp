// What a launch must be so that some device could run it: clusters, cooperation, tensor maps.
#include <string>

#include <catch2/catch.hpp>

#include "kiln/detail/launch_plan.hpp"
#include "kiln/occupancy.hpp"
#include "runtime/device/resource_check.hpp"

using namespace kiln;
using detail::LaunchPlan;

namespace {

const DeviceLimits kHopperLimits = limits_of(90, 132);
const DeviceLimits kAmpereLimits = limits_of(80, 108);

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TensorMap good_map() {
  return TensorMap::tiled<bfloat16>(
      {.size = {4096, 128}, .box = {64, 64}, .swizzle = Swizzle::bytes128, .l2_bytes = 128});
}

/// One argument, a pointer to bfloat16, that configs with a positive value take as a map.
KernelDefinition mapped_kernel() {
  KernelDefinition k;
  k.name = "mapped";
  k.source.text = "x";
  k.entry = "mapped";
  k.arguments = {"const __nv_bfloat16*", "int"};
  k.space.parameter("width", {0, 64, 128}, 0);
  k.problem_fields = {"n"};
  k.launch = [](auto, auto, const DeviceLimits& d) {
    return Launch{{unsigned(d.usable_multiprocessors())}, {32}};
  };
  MapRule rule;
  rule.argument = 0;
  rule.map = [](auto config, auto problem) {
    return TensorMap::tiled<bfloat16>(
        {.size = {problem[0], 8}, .box = {config[0], 8}, .swizzle = Swizzle::bytes128});
  };
  rule.only_if = [](auto config) { return config[0] > 0; };
  k.maps = {rule};
  return k;
}

}  // namespace

TEST_CASE("clusters are held to the device", "[runtime][launch]") {
  const auto obstacle = [](Dim3 grid, Dim3 cluster, const DeviceLimits& limits) {
    return runtime::launch_obstacle({.grid = grid, .block = {128}, .cluster = cluster}, limits);
  };
  CHECK(obstacle({4, 4}, {2, 2}, kHopperLimits).empty());
  CHECK(obstacle({8}, {8}, kHopperLimits).empty());
  CHECK(obstacle({0}, {2}, kHopperLimits).empty());  // nothing to launch
  CHECK(obstacle({7}, {1}, kAmpereLimits).empty());
  CHECK(says(obstacle({4}, {2}, kAmpereLimits),
             "clusters of 2 blocks, but the device has no clusters"));
  CHECK(
      says(obstacle({16}, {16}, kHopperLimits), "clusters of 16 blocks, but the device allows 8"));
  CHECK(says(obstacle({5, 2}, {2, 1}, kHopperLimits), "a grid of 5x2x1, which is no multiple"));
  CHECK(says(obstacle({4}, {0}, kHopperLimits), "a cluster has no blocks"));
  CHECK(says(obstacle({4}, {65536, 65536, 65536}, kHopperLimits), "the device allows 8"));
}

TEST_CASE("a cooperative grid fits the device at once", "[runtime][launch]") {
  const codegen::ResourceUsage usage{.registers = 64, .max_threads = 1024};
  const Launch launch{.grid = {132 * 2}, .block = {512}, .cooperative = true};
  CHECK(runtime::resource_obstacle(usage, launch, kHopperLimits).empty());
  Launch larger = launch;
  larger.grid.x += 1;
  CHECK(says(runtime::resource_obstacle(usage, larger, kHopperLimits),
             "265 blocks at once for a cooperative launch, but 264 fit the device"));
  larger.cooperative = false;
  CHECK(runtime::resource_obstacle(usage, larger, kHopperLimits).empty());
  DeviceLimits shared = kHopperLimits;
  shared.reserved_multiprocessors = 20;
  CHECK(says(runtime::resource_obstacle(usage, launch, shared),
             "264 blocks at once for a cooperative launch, but 224 fit the multiprocessors that "
             "are not reserved"));
  Launch smaller = launch;
  smaller.grid.x = 224;
  CHECK(runtime::resource_obstacle(usage, smaller, shared).empty());
  DeviceLimits without = kHopperLimits;
  without.cooperative = false;
  CHECK(says(runtime::launch_obstacle(launch, without), "a cooperative launch"));
  CHECK(says(
      runtime::launch_obstacle({.grid = {1}, .block = {1}, .shared_carveout = 101}, kHopperLimits),
      "101 percent"));
}

TEST_CASE("tensor maps are held to the hardware's rules", "[runtime][maps]") {
  CHECK(good_map().obstacle().empty());
  CHECK(good_map().box_bytes() == 64 * 64 * 2);
  CHECK(good_map().stride[1] == 8192);
  const auto obstacle = [](auto change) {
    TensorMap map = good_map();
    change(map);
    return map.obstacle();
  };
  CHECK(says(obstacle([](TensorMap& m) { m.size[0] = 0; }), "0 elements in dimension 0"));
  CHECK(says(obstacle([](TensorMap& m) { m.size[1] = 1ull << 33; }), "in dimension 1"));
  CHECK(obstacle([](TensorMap& m) { m.size[1] = 1ull << 32; }).empty());
  CHECK(says(obstacle([](TensorMap& m) { m.box[1] = 257; }), "more than 256"));
  CHECK(says(obstacle([](TensorMap& m) { m.box[1] = 0; }), "a box of 0 elements in dimension 1"));
  CHECK(says(obstacle([](TensorMap& m) { m.stride[1] = 2006; }), "2006 bytes in dimension 1"));
  CHECK(says(obstacle([](TensorMap& m) { m.stride[1] = 1ull << 40; }), "less than 2^40"));
  CHECK(says(obstacle([](TensorMap& m) { m.box[0] = 72; }),
             "144 bytes in dimension 0, but the swizzle"));
  CHECK(says(obstacle([](TensorMap& m) { m.box[0] = 12; }), "24 bytes in dimension 0"));
  CHECK(says(obstacle([](TensorMap& m) { m.rank = 6; }), "6 dimensions"));
  CHECK(says(obstacle([](TensorMap& m) { m.l2_bytes = 32; }), "32 bytes fetched"));
  CHECK(says(obstacle([](TensorMap& m) { m.type = DataType::bytes; }), "a type that no map has"));
  CHECK(says(TensorMap::tiled<float>({.size = {-1}, .box = {4}}).obstacle(), "-1 elements"));
  CHECK(says(TensorMap::tiled<float>({.size = {16, 16}, .stride = {-16}, .box = {4, 4}}).obstacle(),
             "stride"));
  CHECK(says(TensorMap::tiled<float>({.size = {16, 16}, .box = {4}}).obstacle(), "a box of 0"));
  CHECK(says(TensorMap::tiled<float>({.size = {1, 1, 1, 1, 1, 1}, .box = {4}}).obstacle(),
             "6 dimensions"));
}

TEST_CASE("a plan has the maps of its config", "[runtime][maps]") {
  const KernelDefinition k = mapped_kernel();
  k.validate();
  const Values plain{0}, mapped{64}, wide{128}, problem{256}, ragged{257}, none{0};
  CHECK(detail::plan(k, plain, problem, kHopperLimits).maps.empty());
  const LaunchPlan plan = detail::plan(k, mapped, problem, kHopperLimits);
  CHECK(plan.launch.grid.x == 132);
  REQUIRE(plan.maps.size() == 1);
  CHECK(plan.maps[0].map.box[0] == 64);
  CHECK(plan.obstacle(kHopperLimits).empty());
  CHECK(says(plan.obstacle(kAmpereLimits),
             "argument 0 as a tensor map, which the device does not support"));
  CHECK(says(detail::plan(k, wide, problem, kHopperLimits).obstacle(kHopperLimits),
             "argument 0 as a tensor map with a box of 256 bytes in dimension 0, but the swizzle"));
  CHECK(says(detail::plan(k, mapped, ragged, kHopperLimits).obstacle(kHopperLimits),
             "514 bytes in dimension 1"));
  CHECK(says(detail::plan(k, mapped, none, kHopperLimits).obstacle(kHopperLimits), "0 elements"));
}

TEST_CASE("a map of another type than its argument is the author's mistake", "[runtime][maps]") {
  KernelDefinition k = mapped_kernel();
  k.maps[0].map = [](auto, auto) { return TensorMap::tiled<float>({.size = {64}, .box = {32}}); };
  const Values config{64}, problem{256};
  try {
    detail::plan(k, config, problem, kHopperLimits);
    FAIL("accepted");
  } catch (const UserError& error) {
    CHECK(says(error.what(), "argument 0 has elements of f32, but the argument is const "));
  }
  k.arguments[0] = "const MyHalf*";  // a type of the source's own may be what the author says
  CHECK_NOTHROW(detail::plan(k, config, problem, kHopperLimits));
}

TEST_CASE("map rules name arguments that are there", "[runtime][maps]") {
  const auto message = [](auto change) -> std::string {
    KernelDefinition k = mapped_kernel();
    change(k);
    try {
      k.validate();
    } catch (const UserError& error) {
      return error.what();
    }
    return {};
  };
  CHECK(message([](auto&) {}).empty());
  CHECK(says(message([](auto& k) { k.maps[0].argument = 2; }), "`maps` name argument 2"));
  CHECK(says(message([](auto& k) { k.maps[0].argument = 1; }), "which is no pointer but int"));
  CHECK(says(message([](auto& k) { k.maps[0].map = nullptr; }), "no `map` for argument 0"));
  CHECK(says(message([](auto& k) { k.maps.push_back(k.maps[0]); }), "argument 0 twice"));
  CHECK(says(message([](auto& k) { k.maps.resize(9, k.maps[0]); }), "at most 8"));
}
