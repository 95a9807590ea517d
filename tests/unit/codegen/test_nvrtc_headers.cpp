// What CUDA's own headers need of NVRTC, and of the closure of includes.
#include <algorithm>
#include <string>

#include "codegen/include_closure.hpp"
#include "kiln/types.hpp"
#include "kiln_test.hpp"
#include "library_kernels.hpp"
#include "nvrtc_fixture.hpp"

using namespace kiln;
using namespace kiln::codegen;
using namespace kiln::codegen::test;

TEST_CASE("CUDA's headers are found", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  if (nvrtc()->cuda_include_dirs().empty()) KILN_SKIP("CUDA's headers are not here");
  Source s = kernel(R"(
    #include <cuda_bf16.h>
    #include <cuda_fp16.h>
    #include <cuda_fp8.h>
    __global__ void k(__nv_bfloat16* p, const __half* h) { p[0] = __float2bfloat16(__half2float(*h)); })");
  s.signature = "void(__nv_bfloat16*, const __half*)";
  must_compile(s, "sm_90a");
}

TEST_CASE("the device names of 8-bit floats are CUDA's", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  if (nvrtc()->cuda_include_dirs().empty()) KILN_SKIP("CUDA's headers are not here");
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
    Source s = kernel(R"(
      #include <cuda_fp8.h>
      __global__ void k(__nv_fp8_e4m3* p, const __nv_fp8_e5m2* q) { p[0] = __nv_fp8_e4m3((float)q[0]); })");
    s.signature =
        "void(" + device_name<float8_e4m3*>() + ", " + device_name<const float8_e5m2*>() + ")";
    must_compile(s, arch);
  }
}

TEST_CASE("kernels that use CUDA's libraries compile", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  if (nvrtc()->cuda_include_dirs().empty()) KILN_SKIP("CUDA's headers are not here");
  for (const char* entry : {"tiles<8>", "blocks", "diverging", "floats"}) {
    CAPTURE(entry);
    must_compile(kernel(kiln_test::kGroupsKernel, entry), "sm_90a");
  }
  must_compile(kernel(kiln_test::kStandardKernel, "standard"), "sm_90a");
  must_compile(kernel(kiln_test::kIntrinsicsKernel, "intrinsics"));
}

TEST_CASE("the closure of CUDA's headers is complete", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  if (nvrtc()->cuda_include_dirs().empty()) KILN_SKIP("CUDA's headers are not here");
  IncludeCache cache;
  const IncludeContext context = nvrtc()->includes(Target::parse("sm_90a"));
  const IncludeClosure c =
      include_closure("#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n", context, cache);
  for (const std::string& why : c.unresolved) UNSCOPED_INFO(why);
  CHECK(c.complete);
  CHECK(std::any_of(c.files.begin(), c.files.end(),
                    [](const IncludedFile& f) { return contains(f.path, "cuda_fp16.hpp"); }));
  CHECK(include_closure("#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n", context, cache).digest ==
        c.digest);
}

TEST_CASE("the closure of CUDA's libraries is complete", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  if (nvrtc()->cuda_include_dirs().empty()) KILN_SKIP("CUDA's headers are not here");
  IncludeCache cache;
  const IncludeContext context = nvrtc()->includes(Target::parse("sm_90a"));
  for (const char* text : {kiln_test::kGroupsKernel, kiln_test::kStandardKernel}) {
    const IncludeClosure c = include_closure(text, context, cache);
    for (const std::string& why : c.unresolved) UNSCOPED_INFO(why);
    CHECK(c.complete);
    CHECK(c.files.size() > 20);
  }
}
