#include "kiln/error.hpp"
#include "kiln/registry.hpp"
#include "kiln_test.hpp"
#include "user_error.hpp"

using namespace kiln;

using kiln::test::user_error;

namespace {

RegisteredKernel kernel(std::string name, std::vector<std::string> types = {"f32", "bf16"}) {
  return {name, "y = x", std::move(types), [name](std::string_view type) {
            KernelDefinition k;
            k.name = name + "_" + std::string(type);
            return k;
          }};
}

}  // namespace

TEST_CASE("kernels by name and type", "[api][registry]") {
  Registry registry;
  registry.add(kernel("scale")).add(kernel("sum", {"f64"}));
  CHECK(registry.kernels().size() == 2);
  CHECK(registry.make("scale").name == "scale_f32");  // the first type
  CHECK(registry.make("scale", "bf16").name == "scale_bf16");
  CHECK(registry.make("sum").name == "sum_f64");
}

TEST_CASE("what a registry refuses", "[api][registry]") {
  Registry registry;
  registry.add(kernel("scale")).add(kernel("sum"));
  std::string text = user_error([&] { registry.make("scales"); });
  CHECK(text.find("'scales'") != std::string::npos);
  CHECK(text.find("scale, sum") != std::string::npos);
  text = user_error([&] { registry.make("scale", "f16"); });
  CHECK(text.find("'f16'") != std::string::npos);
  CHECK(text.find("f32, bf16") != std::string::npos);
  CHECK(user_error([&] { registry.add(kernel("sum")); }).find("'sum'") != std::string::npos);
  CHECK_THROWS_AS(registry.add(kernel("")), UserError);
  CHECK_THROWS_AS(registry.add(kernel("none", {})), UserError);
  RegisteredKernel empty = kernel("empty");
  empty.make = nullptr;
  CHECK_THROWS_AS(registry.add(empty), UserError);
  CHECK(registry.kernels().size() == 2);
  CHECK_THROWS_AS(Registry{}.make("anything"), UserError);
}

TEST_CASE("the shipped kernels make definitions of every type", "[api][registry]") {
  const Registry registry = shipped_kernels();
  CHECK(registry.kernels().size() >= 4);
  for (const RegisteredKernel& k : registry.kernels()) {
    CHECK_FALSE(k.summary.empty());
    for (const std::string& type : k.types) {
      INFO(k.name << " " << type);
      const KernelDefinition d = registry.make(k.name, type);
      CHECK_NOTHROW(d.validate());
      CHECK(d.name.rfind(k.name, 0) == 0);
      CHECK_FALSE(d.arguments.empty());
      CHECK(d.workload);
      CHECK(d.reference);
      CHECK(std::filesystem::exists(d.source.file));
    }
  }
}
