// Ranges for profilers: the program runs once with a tool (nvtx_tool.cpp) and once without.
#include <cstdlib>
#include <string>

#include <dlfcn.h>

#include "kiln_test.hpp"
#include "runtime/support/nvtx.hpp"
#include "runtime/support/spans.hpp"

using namespace kiln::runtime;

TEST_CASE("a profiler sees spans as ranges of the domain kiln", "[runtime][spans][nvtx]") {
  const char* tool = std::getenv("NVTX_INJECTION64_PATH");
  Spans spans;
  {
    SpanScope tune(&spans, "kiln.tune", {{"kernel", "gemm"}, {"problem", "m=1"}});
    SpanScope load(&spans, "kiln.load", {{"kernel", "gemm"}, {"config", "x=1"}});
    load.end();
  }
  if (!tool) {
    CHECK_FALSE(nvtx_listens());
    CHECK_FALSE(spans.listened());
    return;
  }
  CHECK(nvtx_listens());
  void* const loaded = dlopen(tool, RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(loaded != nullptr);
  const auto noted = reinterpret_cast<const char* (*)()>(dlsym(loaded, "kiln_test_noted"));
  REQUIRE(noted != nullptr);
  CHECK(std::string(noted()) == "domain kiln\npush tune gemm m=1\npush load gemm x=1\npop\npop\n");
}
