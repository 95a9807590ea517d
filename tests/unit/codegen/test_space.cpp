#include "kiln/space.hpp"
#include "kiln_test.hpp"

using namespace kiln;

namespace {

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

bool says(const std::function<void()>& f, std::initializer_list<const char*> parts) {
  const std::string text = message(f);
  for (const char* part : parts)
    if (text.find(part) == std::string::npos) {
      WARN(text);
      return false;
    }
  return true;
}

DynamicSpace two() {
  DynamicSpace s;
  s.parameter("block", {64, 128, 256}, 128).parameter("items", {1, 2, 4}, 4);
  return s;
}

}  // namespace

TEST_CASE("mistakes in a parameter name field and value", "[codegen][space]") {
  CHECK(says([] { two().parameter("", {1}, 1); }, {"empty name"}));
  CHECK(says([] { two().parameter("items", {1}, 1); }, {"'items'", "twice"}));
  CHECK(says([] { two().parameter("stages", {}, 1); }, {"'stages'", "empty list"}));
  CHECK(says([] { two().parameter("stages", {2, 3, 2}, 2); }, {"'stages'", "2", "twice"}));
  CHECK(says([] { two().parameter("stages", {2, 3}, 5); }, {"'stages'", "5"}));
  CHECK(says([] { two().where("", [](auto, auto, const auto&) { return true; }); }, {"reason"}));
  CHECK(says([] { two().where("even", nullptr); }, {"'even'"}));
}

TEST_CASE("a refused parameter leaves the space as it was", "[codegen][space]") {
  DynamicSpace s = two();
  CHECK_THROWS_AS(s.parameter("stages", {2}, 3), UserError);
  CHECK(s.parameters().size() == 2);
  CHECK(s.default_config() == Values{128, 4});
}

TEST_CASE("a default of its own for a kind of target", "[codegen][space]") {
  DynamicSpace s = two();
  CHECK(s.default_config(Target::Kind::host) == Values{128, 4});
  s.default_on(Target::Kind::host, {64, 1});
  CHECK(s.default_config(Target::Kind::host) == Values{64, 1});
  CHECK(s.default_config(Target::Kind::cuda) == Values{128, 4});
  CHECK(says([&] { s.default_on(Target::Kind::host, {64, 3}); }, {"3", "'items'"}));
  CHECK(says([&] { s.default_on(Target::Kind::host, {64}); }, {"1 values for 2 parameters"}));
  CHECK(s.default_config(Target::Kind::host) == Values{64, 1});
}

TEST_CASE("configs by name", "[codegen][space]") {
  const DynamicSpace s = two();
  CHECK(s.config({}) == Values{128, 4});
  CHECK(s.config({{"items", 1}}) == Values{128, 1});
  CHECK(s.config({{"items", 2}, {"block", 64}}) == Values{64, 2});
  CHECK(says([&] { s.config({{"blocks", 64}}); }, {"'blocks'", "block, items"}));
  CHECK(says([&] { s.config({{"block", 65}}); }, {"65", "'block'"}));
  CHECK(s.describe(Values{64, 2}) == "block=64,items=2");
  CHECK(DynamicSpace{}.describe({}).empty());
}

TEST_CASE("combinations", "[codegen][space]") {
  CHECK(DynamicSpace{}.combinations() == 1);
  CHECK(two().combinations() == 9);
  DynamicSpace large;
  std::vector<std::int64_t> values(1000);
  for (int i = 0; i < 1000; ++i) values[static_cast<std::size_t>(i)] = i;
  for (int i = 0; i < 8; ++i) large.parameter("p" + std::to_string(i), values, 0);
  CHECK(large.combinations() == 0x1p53);
}

TEST_CASE("the first constraint that fails", "[codegen][space]") {
  DynamicSpace s = two();
  int asked = 0;
  s.where("block", [](auto c, auto, const auto&) { return c[0] <= 128; });
  s.where("problem", [&](auto, auto p, const auto&) { return ++asked, p[0] > 1; });
  s.where("device", [](auto, auto, const DeviceLimits& d) { return d.warp_size == 32; });
  const DeviceLimits limits;
  CHECK(s.violated(Values{128, 1}, Values{2}, limits) == nullptr);
  CHECK(s.violated(Values{256, 1}, Values{1}, limits)->reason == "block");
  CHECK(asked == 1);
  CHECK(s.violated(Values{64, 1}, Values{1}, limits)->reason == "problem");
  DeviceLimits narrow;
  narrow.warp_size = 1;
  CHECK(s.violated(Values{64, 1}, Values{2}, narrow)->reason == "device");
}

TEST_CASE("values of a parameter on one kind of target", "[codegen][space]") {
  DynamicSpace s = two();
  s.values_on(Target::Kind::host, "block", {1, 64});
  CHECK(s.on(Target::Kind::cuda).parameters()[0].values == Values{64, 128, 256});
  CHECK(s.on(Target::Kind::host).parameters()[0].values == Values{1, 64});
  CHECK(s.on(Target::Kind::host).combinations() == 6);
  CHECK(s.parameters()[0].values == Values{64, 128, 256, 1});
  DeviceLimits host, gpu;
  gpu.compute_capability = 90;
  CHECK_FALSE(s.violated(Values{1, 1}, {}, host));
  CHECK(s.violated(Values{1, 1}, {}, gpu)->reason ==
        "on GPUs parameter 'block' has values of its own");
  CHECK(s.violated(Values{256, 1}, {}, host)->reason ==
        "on hosts parameter 'block' has values of its own");
  CHECK(s.default_config(Target::Kind::host) == Values{1, 4});  // 128 is not there
  CHECK(s.default_config() == Values{128, 4});
  CHECK(says([&] { s.default_on(Target::Kind::host, {128, 4}); }, {"128", "'block'"}));
  CHECK(says([&] { s.default_on(Target::Kind::cuda, {1, 4}); }, {"1", "'block'"}));
  CHECK(says([&] { s.values_on(Target::Kind::host, "block", {2}); }, {"'block'", "twice"}));
  CHECK(says([&] { s.values_on(Target::Kind::host, "blocks", {2}); }, {"'blocks'", "hosts"}));
  CHECK(says([&] { s.values_on(Target::Kind::cuda, "items", {}); }, {"'items'", "empty"}));
  CHECK(says([&] { s.values_on(Target::Kind::cuda, "items", {2, 2}); }, {"'items'", "twice"}));
  CHECK(
      says([&] { s.values_on(Target::Kind::cuda, "items", {2}, {"two"}); }, {"'items'", "names"}));
  // A value that only one kind had, and lost, belongs to no kind any more.
  s.values_on(Target::Kind::cuda, "block", {256});
  CHECK(s.parameters()[0].values == Values{256, 1, 64});
  CHECK(s.default_config() == Values{256, 4});
  CHECK_FALSE(s.violated(Values{256, 1}, {}, gpu));
  CHECK(s.violated(Values{64, 1}, {}, gpu));
}

TEST_CASE("the most specific default", "[codegen][space]") {
  DynamicSpace s = two();
  s.default_on(ComputeCapability{80}, {64, 1}).default_on(ComputeCapability{100}, {256, 1});
  s.default_on(ComputeCapability{90}, {256, 2});
  CHECK(s.default_config(Target::parse("sm_75")) == Values{128, 4});
  CHECK(s.default_config(Target::parse("sm_86")) == Values{64, 1});
  CHECK(s.default_config(Target::parse("sm_90a")) == Values{256, 2});
  CHECK(s.default_config(Target::parse("sm_103f")) == Values{256, 1});
  CHECK(s.default_config(Target::parse("host")) == Values{128, 4});
  CHECK(says([&] { s.default_on(ComputeCapability{90}, {64, 1}); }, {"90", "twice"}));
  CHECK(says([&] { s.default_on(ComputeCapability{-1}, {64, 1}); }, {"-1"}));
  CHECK(says([&] { s.default_on(ComputeCapability{70}, {65, 1}); }, {"65", "'block'"}));
  // A list of the GPUs' own moves what it leaves out.
  s.values_on(Target::Kind::cuda, "block", {64, 128});
  CHECK(s.default_config(Target::parse("sm_90a")) == Values{64, 2});
}
