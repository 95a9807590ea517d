// Kernels that communicate while they run (kiln/peers.cuh), compiled by NVRTC.
#include "codegen/instance.hpp"
#include "nvrtc_fixture.hpp"
#include "ring_all_gather.hpp"

using namespace kiln;
using namespace kiln::codegen;
using namespace kiln::codegen::test;

TEST_CASE("a kernel that signals other ranks and waits for them compiles",
          "[codegen][nvrtc][symmetric]") {
  KILN_NEEDS_NVRTC(probe());
  KernelDefinition k;
  k.name = "ring";
  k.source.text = kiln::test::kRingAllGather;
  k.entry = "ring";
  k.arguments = {"const kiln::Peers*", "int*", "int", "int", "unsigned int", "int"};
  k.space.parameter("threads", {64}, 64);
  k.launch = [](auto, auto) { return Launch{}; };
  const Values config{64};
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
    CAPTURE(arch);
    IncludeCache cache;
    const Binary b =
        must_compile(make_source(k, config, Target::parse(arch), *nvrtc(), cache), arch);
    CHECK(b.resources.stack == 0);
    CHECK(b.resources.registers > 0);
  }
}
