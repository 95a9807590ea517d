#include "codegen/resource_report.hpp"
#include "kiln_test.hpp"

using namespace kiln::codegen;

namespace {

constexpr std::string_view kLog =
    "ptxas info    : 0 bytes gmem\n"
    "a.cu(3): warning: something\n"
    "ptxas info    : Compiling entry function '_Z1av' for 'sm_90a'\n"
    "ptxas info    : Function properties for _Z1av\n"
    "ptxas         .     16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads\n"
    "ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem, 380 bytes cmem[0]\n"
    "ptxas info    : Compile time = 2.441 ms\n"
    "ptxas info    : Function properties for _Z6calleePfi\n"
    "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
    "ptxas warning : odd\n"
    "ptxas info    : Compiling entry function '_Z1avv' for 'sm_90a'\n"
    "ptxas info    : Function properties for _Z1avv\n"
    "ptxas         .     99 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads\n"
    "ptxas info    : Used 99 registers\n";

}  // namespace

TEST_CASE("one kernel's report is told from the others'", "[codegen][resources]") {
  const PtxasLog a = split_ptxas_log(kLog, "_Z1av");
  REQUIRE(a.kernel);
  CHECK(*a.kernel == ResourceUsage{40, 28, 44, 16, 2048, 0});  // with its callee's spills
  CHECK(a.messages == "a.cu(3): warning: something\nptxas warning : odd");
  const PtxasLog b = split_ptxas_log(kLog, "_Z1avv");
  REQUIRE(b.kernel);
  CHECK(*b.kernel == ResourceUsage{99, 99, 99, 99, 0, 0});
  CHECK_FALSE(split_ptxas_log(kLog, "_Z1").kernel);
  CHECK_FALSE(split_ptxas_log("", "x").kernel);
  CHECK(split_ptxas_log("no newline", "x").messages == "no newline");
  CHECK(split_ptxas_log("ptxas info    : Function properties for", "x").messages.empty());
}

TEST_CASE("bytes that are no cubin have no resources", "[codegen][resources]") {
  CHECK_FALSE(read_cubin_resources({}, "k"));
  std::vector<std::byte> bytes(64, std::byte{0xff});
  CHECK_FALSE(read_cubin_resources(bytes, "k"));
  CHECK(read_cubin_variables({}).empty());
  CHECK(read_cubin_variables(bytes).empty());
}
