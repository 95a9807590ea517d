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

TEST_CASE("boxes of one to five dimensions compile", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  std::string body, at = "0";
  for (int dimensions = 1; dimensions <= 5; ++dimensions, at += ", 0")
    body += "load_tile(shared, map, full, " + at + ");\n" +
            "load_tile<Keep::longer>(shared, map, full, " + at + ");\n" +
            "load_tile_to(3, shared, map, full, " + at + ");\n" + "prefetch_tile(map, " + at +
            ");\n" + "store_tile(map, shared, " + at + ");\n" + "add_tile(map, shared, " + at +
            ");\n";
  Source boxes = kernel(
      "#include <kiln/hopper.cuh>\n"
      "using namespace kiln::hopper;\n"
      "__global__ void boxes(const __grid_constant__ TensorMap map) {\n"
      "  extern __shared__ __align__(1024) unsigned char shared[];\n"
      "  auto& full = *reinterpret_cast<Barrier*>(shared + 8192);\n" +
          body + "}\n",
      "boxes");
  boxes.include_dirs = {kiln::include_dir().string()};
  must_compile(boxes, "sm_90a");
}
