#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/target.hpp"
#include "kiln_test.hpp"

using namespace kiln;

TEST_CASE("targets parse to themselves", "[codegen][target]") {
  for (const char* name : {"sm_75", "sm_80", "sm_90", "sm_90a", "sm_100a", "sm_100f", "sm_103a",
                           "sm_110a", "sm_120a", "sm_121a"}) {
    const Target t = Target::parse(name);
    CHECK(t.kind == Target::Kind::cuda);
    CHECK(t.arch == name);
  }
  for (const char* name : {"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "generic"}) {
    CHECK(Target::parse(name) == Target{Target::Kind::host, name});
  }
  CHECK_FALSE(Target::parse("sm_90") == Target::parse("sm_90a"));
}

TEST_CASE("host is this machine's level", "[codegen][target]") {
  const Target here = Target::this_host();
  CHECK(here.kind == Target::Kind::host);
  CHECK(Target::parse("host") == here);
  CHECK(Target::parse(here.arch) == here);
#if defined(__AVX512VL__)
  CHECK(here.arch == "x86-64-v4");
#endif
}

TEST_CASE("binaries run on their own machine and on wider ones", "[codegen][target]") {
  const auto run_on = [](const char* name) {
    std::vector<std::string> archs;
    for (const Target& t : targets_that_run_on(Target::parse(name))) archs.push_back(t.arch);
    return archs;
  };
  using Names = std::vector<std::string>;
  CHECK(run_on("x86-64-v4") == Names{"x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64"});
  CHECK(run_on("x86-64") == Names{"x86-64"});
  CHECK(run_on("generic") == Names{"generic"});
  CHECK(run_on("sm_80") == Names{"sm_80"});
  CHECK(run_on("sm_89") == Names{"sm_89", "sm_86", "sm_80"});
  CHECK(run_on("sm_87") == Names{"sm_87"});  // embedded
  CHECK(run_on("sm_90a") == Names{"sm_90a", "sm_90"});
  CHECK(run_on("sm_103a") == Names{"sm_103a", "sm_103f", "sm_103", "sm_100f", "sm_100"});
  CHECK(run_on("sm_121a") == Names{"sm_121a", "sm_121f", "sm_121", "sm_120f", "sm_120"});
}

TEST_CASE("an unknown target is the caller's mistake, and the known ones are listed",
          "[codegen][target]") {
  for (const char* name : {"", "sm_", "sm_13", "sm_80a", "sm_90f", "SM_90", "sm_90a ", "compute_90",
                           "x86-64-v5", "cuda"}) {
    CAPTURE(name);
    try {
      Target::parse(name);
      FAIL("accepted");
    } catch (const UserError& e) {
      const std::string what = e.what();
      CHECK(what.find('"' + std::string(name) + '"') != std::string::npos);
      CHECK(what.find("sm_100a") != std::string::npos);
      CHECK(what.find("x86-64-v3") != std::string::npos);
    }
  }
}
