// The examples of headers that kernels read (device_examples.cuh), compiled by NVRTC.
#include <fstream>
#include <sstream>

#include "kiln/paths.hpp"
#include "nvrtc_fixture.hpp"

using namespace kiln::codegen;
using namespace kiln::codegen::test;

TEST_CASE("the examples of device headers compile", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  std::stringstream text;
  text << std::ifstream(KILN_DEVICE_EXAMPLES).rdbuf();
  REQUIRE(!text.str().empty());
  Source examples = kernel(text.str(), "kernel");
  examples.steps = {"exchange", "gemm<SplitK{false}, float>", "copy<SplitK{false}, float>",
                    "copy<SplitK{true}, float>", "staged"};
  examples.include_dirs = {kiln::include_dir().string(), kiln::templates_dir().string()};
  must_compile(examples, "sm_90a");
}
