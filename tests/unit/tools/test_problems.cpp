// Files of problems, and the one that is shipped as an example.
#include <map>
#include <set>
#include <string>

#include "kiln/registry.hpp"
#include "kiln_test.hpp"
#include "temporary_directory.hpp"
#include "tools/problems.hpp"

using namespace kiln;
using namespace kiln::tools;

namespace {

std::int64_t field(const NamedProblem& job, const std::string& name) {
  for (std::size_t i = 0; i < job.problem.size(); ++i)
    if (job.kernel.problem_fields[i] == name) return job.problem[i];
  return 0;
}

/// Rows of a problem: tokens, whatever a kernel calls them.
std::int64_t tokens(const NamedProblem& job) {
  return field(job, "m") + field(job, "rows") + field(job, "tokens");
}

/// `gemm 6144x4096`: what one token needs of a kernel.
std::string work(const NamedProblem& job) {
  std::string text = job.kernel.name;
  if (field(job, "k") > 0)
    text += " " + std::to_string(field(job, "n")) + "x" + std::to_string(field(job, "k"));
  else if (field(job, "hidden") > 0)
    text += " " + std::to_string(field(job, "hidden"));
  else
    text += " " + std::to_string(field(job, "q_heads")) + "+" +
            std::to_string(field(job, "kv_heads")) + "x" + std::to_string(field(job, "head_dim"));
  return text;
}

}  // namespace

TEST_CASE("the example of a decoder layer has each of its kernels, for few tokens and for many",
          "[tools]") {
  // Llama 3 8B: hidden 4096, 32 heads of q and 8 of k and v of 128, an MLP of 14336.
  const std::set<std::string> in_16_bits{"rmsnorm 4096",          "gemm 6144x4096",
                                         "rope_paged 32+8x128",   "gemm 4096x4096",
                                         "rmsnorm_residual 4096", "gemm_gated_silu 14336x4096",
                                         "gemm 4096x14336"};
  const std::set<std::string> in_8_bits{"rmsnorm_fp8_blocks 4096",
                                        "gemm_fp8_block 6144x4096",
                                        "quantize_blocks 4096",
                                        "gemm_fp8_block 4096x4096",
                                        "rmsnorm_residual_fp8_blocks 4096",
                                        "gemm_fp8_block_gated_silu_fp8_blocks 14336x4096",
                                        "gemm_fp8_block 4096x14336"};
  std::map<std::int64_t, std::multiset<std::string>> on_gpu, on_host;
  for (const NamedProblem& job :
       read_problems(KILN_EXAMPLES "/llama3-8b.json", shipped_kernels())) {
    if (job.meant_for(Target::Kind::cuda)) on_gpu[tokens(job)].insert(work(job));
    if (job.meant_for(Target::Kind::host)) on_host[tokens(job)].insert(work(job));
  }
  CHECK(on_gpu.size() == 4);
  for (const std::int64_t m : {1, 16, 512, 4096})
    for (const auto* layer : {&in_16_bits, &in_8_bits})
      for (const std::string& kernel : *layer) {
        CAPTURE(m, kernel);
        CHECK(on_gpu[m].count(kernel) == 1);
      }
  // A CPU has those of 16 tokens, but for a norm that it has for 1 and for 512.
  for (const auto* layer : {&in_16_bits, &in_8_bits})
    for (const std::string& kernel : *layer) {
      CAPTURE(kernel);
      CHECK(on_host[kernel == "rmsnorm 4096" ? 1 : 16].count(kernel) == 1);
    }
}

TEST_CASE("a file says how groups of rows are aligned", "[tools]") {
  const kiln::test::TemporaryDirectory folder;
  const auto file = folder.path() / "problems.json";
  const auto read = [&](const std::string& kernel, const std::string& more) {
    kiln::test::write_text(file,
                           R"([{"kernel": ")" + kernel + R"(", "types": "bf16", "problem": )" +
                               R"({"m": 8192, "n": 4096, "k": 7168, "groups": 8)" + more + "}}]");
    return read_problems(file.string(), shipped_kernels()).at(0);
  };
  for (const std::string kernel : {"gemm_padded", "gemm_padded_fp8_block"}) {
    const NamedProblem job = read(kernel, R"(, "row_alignment": 128)");
    CHECK(job.kernel.name == kernel);
    CHECK(job.problem == Values{8192, 4096, 7168, 8, 128});
    CHECK_THROWS_WITH(read(kernel, ""), Catch::Contains("row_alignment"));
  }
  CHECK_THROWS_WITH(read("gemm_grouped", R"(, "row_alignment": 128)"),
                    Catch::Contains("row_alignment"));
}
