#include <cmath>
#include <functional>

#include "kiln/definition.hpp"
#include "kiln_test.hpp"

using namespace kiln;

namespace {

KernelDefinition good() {
  KernelDefinition k;
  k.name = "scale";
  k.source.text = "__global__ void scale(float* x, float a, int n) {}";
  k.entry = "scale";
  k.arguments = {"float*", "float", "int"};
  k.space.parameter("block", {64, 128}, 64);
  k.problem_fields = {"n", "m"};
  k.launch = [](auto, auto) { return Launch{}; };
  return k;
}

/// What validate() says after a change; empty when it accepts.
std::string after(const std::function<void(KernelDefinition&)>& change) {
  KernelDefinition k = good();
  change(k);
  try {
    k.validate();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

bool names(const std::string& text, const std::string& field) {
  return text.find(field) != std::string::npos;
}

}  // namespace

TEST_CASE("a definition that is complete", "[codegen][definition]") {
  CHECK(after([](auto&) {}).empty());
  CHECK(after([](auto& k) { k.name = "_2nd_kernel"; }).empty());
  CHECK(after([](auto& k) { k.problem_fields.clear(); }).empty());
  CHECK(after([](auto& k) { k.tolerance = {0, 0}; }).empty());
  CHECK(after([](auto& k) { k.tolerance.mismatches = 0.5; }).empty());
  CHECK(after([](auto& k) { k.space = {}; }).empty());
  CHECK(after([](auto& k) { k.relations = {{2, "n"}}; }).empty());
}

TEST_CASE("each field that is missing or makes no sense is named", "[codegen][definition]") {
  for (const char* name : {"", "two words", "9lives", "a-b", "../x", "name\n", "n\xc3\xa4me"})
    CHECK(names(after([=](auto& k) { k.name = name; }), "`name`"));
  CHECK(names(after([](auto& k) { k.source = {}; }), "neither a file nor text"));
  CHECK(names(after([](auto& k) { k.source.file = "scale.cuh"; }), "both a file and text"));
  CHECK(names(after([](auto& k) { k.entry.clear(); }), "`entry`"));
  CHECK(names(after([](auto& k) { k.passing = Passing::config_struct; }), "`config_type`"));
  CHECK(names(after([](auto& k) { k.launch = nullptr; }), "`launch`"));
  CHECK(names(after([](auto& k) { k.arguments[1].clear(); }), "`arguments[1]`"));
  CHECK(names(after([](auto& k) { k.types = {"float", ""}; }), "`types[1]`"));
  CHECK(names(after([](auto& k) { k.problem_fields[1].clear(); }), "`problem_fields[1]`"));
  CHECK(names(after([](auto& k) { k.problem_fields[1] = "n"; }), "'n' is given twice"));
  for (double bad : {-1.0, std::nan("")}) {
    CHECK(names(after([=](auto& k) { k.tolerance.relative = bad; }), "`tolerance`"));
    CHECK(names(after([=](auto& k) { k.tolerance.absolute = bad; }), "`tolerance`"));
  }
  CHECK(names(after([](auto& k) { k.relations = {{2, "n"}, {3, "m"}}; }), "argument 3"));
  CHECK(
      names(after([](auto& k) { k.relations = {{2, "k"}}; }), "'k', which is not a problem field"));
  for (double bad : {-1e-4, 1.0, 2.0, std::nan("")})
    CHECK(names(after([=](auto& k) { k.tolerance.mismatches = bad; }), "`tolerance.mismatches`"));
  for (auto passing : {Passing::macros, Passing::constants})
    CHECK(names(after([=](auto& k) {
                  k.passing = passing;
                  k.space.parameter("block size", {1}, 1);
                }),
                "'block size'"));
  // Everything else about it is said with the kernel's name.
  CHECK(names(after([](auto& k) { k.entry.clear(); }), "kernel 'scale'"));
}

TEST_CASE("problems by name", "[codegen][definition]") {
  const KernelDefinition k = good();
  CHECK(k.problem({{"m", 2}, {"n", 1}}) == Values{1, 2});
  const auto message = [&](const std::map<std::string, std::int64_t>& named) -> std::string {
    try {
      k.problem(named);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(names(message({{"n", 1}}), "'m' is missing"));
  CHECK(names(message({{"n", 1}, {"m", 1}, {"k", 1}}), "'k' (known: n, m)"));
  CHECK(names(message({{"n", -1}, {"m", 1}}), "'n' is negative (-1)"));
  CHECK(message({{"n", 0}, {"m", 0}}).empty());
  CHECK(k.describe_problem(Values{1, 2}) == "n=1,m=2");
  const Values longer{1, 2};
  CHECK(k.describe_problem(std::span(longer).first(1)) == "n=1,m=?");
  CHECK(k.signature() == "void(float*, float, int)");
}

TEST_CASE("buckets", "[codegen][definition]") {
  KernelDefinition k = good();
  CHECK(k.bucketed(Values{5, 6}) == Values{5, 6});
  CHECK_THROWS_AS(k.bucketed(Values{5}), UserError);
  CHECK_THROWS_AS(k.bucketed(Values{5, 6, 7}), UserError);
  k.bucket = [](auto p) { return Values{p[0] * 2, 0}; };
  CHECK(k.bucketed(Values{5, 6}) == Values{10, 0});
  k.bucket = [](auto) { return Values{1}; };
  CHECK_THROWS_AS(k.bucketed(Values{5, 6}), UserError);
}

TEST_CASE("a definition without problem fields has one problem", "[codegen][definition]") {
  KernelDefinition k = good();
  k.problem_fields.clear();
  k.validate();
  CHECK(k.problem({}).empty());
  CHECK(k.bucketed({}).size() == 0);
  CHECK(k.describe_problem({}) == "(its only problem)");
}

TEST_CASE("functions of a definition find values by name", "[codegen][definition]") {
  KernelDefinition k = good();
  k.space.parameter("items", {1, 2}, 1);
  k.launch = k.by_name([](auto config, auto problem) {
    return Launch{{unsigned(problem["m"]), unsigned(problem[0])},
                  {unsigned(config["items"]), unsigned(config["block"])}};
  });
  k.space.where("blocks fit", k.by_name([](Named c, Named p, const DeviceLimits& limits) {
    return c["block"] * c["items"] <= p["n"] && c["block"] <= limits.max_threads_per_block;
  }));
  k.cost =
      k.by_name([](Named c, Named p, const DeviceLimits&) { return double(p["n"] / c["items"]); });
  k.bucket = k.by_field([](Named p) { return Values{p["n"], 7 * p["m"]}; });
  k.workload = k.by_field([](Named p, Workload& w) { w.output<float>(std::size_t(p["m"])); });
  k.flops = k.by_field([](Named p) { return 2.0 * double(p["n"]); });
  const KernelDefinition copy = k;  // keeps what the functions need
  const Values config{64, 2}, problem{128, 5};
  const Launch g = copy.launch(config, problem, {});
  CHECK(g.grid.x == 5);
  CHECK(g.grid.y == 128);
  CHECK(g.block.x == 2);
  CHECK(g.block.y == 64);
  CHECK_FALSE(copy.space.violated(config, problem, DeviceLimits{}));
  const Values small{127, 5};
  CHECK(copy.space.violated(config, small, DeviceLimits{}));
  CHECK(copy.cost(config, problem, DeviceLimits{}) == 64);
  CHECK(copy.bucketed(problem) == Values{128, 35});
  CHECK(copy.flops(problem) == 256);
  Workload workload;
  copy.workload(problem, workload);
  CHECK(workload.arguments().at(0).count == 5);
  CHECK(Named({}, config).values().size() == 2);
}

TEST_CASE("a name that is not there is an error that says which are", "[codegen][definition]") {
  KernelDefinition k = good();
  const auto said = [&](auto f) -> std::string {
    try {
      k.launch = k.by_name(f);
      k.launch(Values{64}, Values{1, 2}, {});
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(said([](Named c, Named) { return Launch{{unsigned(c["blokc"])}, {}}; }) ==
        "there is no field 'blokc' (known: block)");
  CHECK(said([](Named, Named p) { return Launch{{unsigned(p["block"])}, {}}; }) ==
        "there is no field 'block' (known: n, m)");
}
