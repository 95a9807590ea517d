// The GEMM's kinds as programs use them, through a runtime on the host: workloads, buckets, verdicts
// and what is refused.
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "codegen/llvm_plugin.hpp"
#include "kiln/kernels/gemm.hpp"
#include "kiln/kiln.hpp"
#include "kiln_test.hpp"
#include "leaky_relu.hpp"

/// Its header, which a test writes, has something else for kernel compilers.
struct Halved {
  float operator()(float sum, const kiln::epilogue::Place&) const { return sum / 2; }
};

namespace gemm_interface {

using namespace kiln::templates;
using kiln::bfloat16;
using kiln::epilogue::Bias, kiln::epilogue::Chain, kiln::epilogue::PerBatch,
    kiln::epilogue::Residual;

const std::string kLeaky = KILN_EXAMPLES "/leaky_relu.hpp";

/// A factor per batch, and a limit.
struct PerBatchLimit {
  float operator()(float sum, const kiln::epilogue::Place& at, PerBatch<float> factor,
                   int most) const {
    const float scaled = sum * factor[at];
    return scaled > static_cast<float>(most) ? static_cast<float>(most) : scaled;
  }
};

kiln::RuntimeOptions quiet(kiln::Mode mode = kiln::Mode::untuned) {
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  options.mode = mode;
  return options;
}

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const kiln::UserError& error) {
    return error.what();
  }
  return "accepted";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

}  // namespace gemm_interface

using namespace gemm_interface;

TEST_CASE("gemm: padded rows, batches and epilogues are verified by their reference",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime(quiet());
  const auto right = [&](const auto& kernel, const auto& problem) {
    const kiln::Verification v = runtime.tuned(kernel).verify(problem);
    INFO(kernel.name << ": " << v.why);
    CHECK(v.right);
  };
  using Fused = Chain<Bias<bfloat16>, LeakyRelu, Residual<bfloat16>>;
  const auto fused = gemm_strided_kernel<bfloat16, GemmTranspose::nn, Fused>(kLeaky);
  right(fused, GemmStridedProblem{33, 40, 50, 48, 56, 40, 3, 33 * 48, 33 * 56, 0});
  right(fused, GemmStridedProblem{33, 40, 50, 48, 56, 40, 3, 2000, 4000, 5000});  // other gaps
  right(fused, GemmStridedProblem{33, 40, 50, 40, 50, 40, 2, 33 * 40 + 7, 2000, 3000});
  right(gemm_strided_kernel<float, GemmTranspose::tn>(),
        GemmStridedProblem{20, 30, 40, 30, 20, 30, 0, 0, 0, 0});
  right(gemm_kernel<float, GemmTranspose::tt, LeakyRelu>(kLeaky), GemmProblem{20, 31, 0});
}

TEST_CASE("gemm: large problems are verified on the device", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime(quiet(kiln::Mode::tune_now));
  kiln::TuneOptions few;
  few.max_evaluations = 2;
  const auto check = [&](const auto& kernel, const auto& problem) {
    const kiln::TuneResult result = runtime.tuned(kernel).tune(problem, few);
    for (const std::string& warning : result.warnings) {
      INFO(warning);
      CHECK_FALSE(has(warning, "the reference on the host is used"));
    }
    CHECK(result.count(kiln::CandidateStatus::wrong_result) == 0);
  };
  check(gemm_kernel<float>(), GemmProblem{256, 256, 256});
  check(gemm_strided_kernel<bfloat16, GemmTranspose::tn, Chain<Bias<bfloat16>, LeakyRelu>>(kLeaky),
        GemmStridedProblem{128, 128, 256, 128, 136, 128, 4, 128 * 128, 256 * 136, 256 * 128});
}

TEST_CASE("gemm: distances and overlaps that make no sense are refused", "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime(quiet());
  const auto gemm = runtime.tuned(gemm_strided_kernel<float, GemmTranspose::tn>());
  const auto words = [&](const GemmStridedProblem& p) {
    return refusal_of([&] { gemm.prepare(p); });
  };
  CHECK(words({8, 16, 32, 16, 8, 16, 2, 128, 0, 0}) == "accepted");
  CHECK(has(words({8, 16, 32, 15, 8, 16, 1, 0, 0, 0}), "ldc is 15, less than a row's 16 elements"));
  CHECK(has(words({8, 16, 32, 16, 7, 16, 1, 0, 0, 0}), "lda is 7, less than a row's 8 elements"));
  CHECK(has(words({8, 16, 32, 16, 8, 15, 1, 0, 0, 0}), "ldb is 15, less than a row's 16 elements"));
  CHECK(has(words({8, 16, 32, 16, 8, 16, 2, 127, 0, 0}), "stride_c is 127"));
  CHECK(has(words({8, 16, 32, 16, 8, 16, 2, 128, -8, 0}), "negative"));

  std::vector<float> memory(4096, 1.0f);
  float* const c = memory.data();
  const auto launch = [&](const float* a, const float* b) {
    return refusal_of([&] {
      gemm(kiln::Stream{}, c, a, b, 8, 16, 32, std::int64_t{16}, std::int64_t{8}, std::int64_t{16},
           2, std::int64_t{128}, std::int64_t{0}, std::int64_t{0});
    });
  };
  CHECK(launch(c + 256, c + 512) == "accepted");
  CHECK(has(launch(c + 255, c + 512), "C overlaps A or B"));
  CHECK(has(launch(c + 512, c), "C overlaps A or B"));
}

TEST_CASE("gemm: problems share a tuning by what copies can do with their distances",
          "[templates]") {
  const auto bucket = gemm_strided_kernel<bfloat16, GemmTranspose::tn>().bucket;
  const auto values = [&](const GemmStridedProblem& p) { return kiln::to_values(bucket(p)); };
  const auto shape_of = [&](const GemmStridedProblem& p) {
    return gemm_shape<GemmTranspose::tn>(bucket(p));
  };
  const GemmStridedProblem p{100, 64, 32, 72, 104, 64, 3, 7200, 3328, 0};
  GemmStridedProblem wider = p;
  wider.ldc = 80, wider.lda = 1024, wider.stride_c = 8000, wider.stride_a = 32768;
  CHECK(values(p) == values(wider));
  CHECK(values(bucket(wider)) == values(wider));
  CHECK(shape_of(p).all_mappable());
  GemmStridedProblem odd = p;
  odd.lda = 105;
  CHECK(values(p) != values(odd));
  CHECK_FALSE(shape_of(odd).all_mappable());
  CHECK(values(bucket(odd)) == values(odd));
  odd = p;
  odd.stride_c = 7201;
  CHECK_FALSE(shape_of(odd).all_mappable());
  odd.stride_c = GemmStride{1} << 39;  // more than a map can have
  CHECK_FALSE(shape_of(odd).all_mappable());

  // Of [k][m] without gaps m is the leading dimension.
  const auto tight = gemm_kernel<bfloat16, GemmTranspose::tn>().bucket;
  CHECK(tight({104, 64, 32}).m == 112);
  CHECK(tight({100, 64, 32}).m == 100);
  CHECK(gemm_kernel<bfloat16>().bucket({100, 64, 32}).m == 112);
}

TEST_CASE("gemm: an epilogue of the user's own is in the signature, and its errors are shown",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const auto leaky = gemm_strided_kernel<float, GemmTranspose::nt, LeakyRelu>(kLeaky).definition();
  CHECK(leaky.arguments.size() == 14);
  CHECK(leaky.arguments.back() == "float");
  CHECK(refusal_of([] { gemm_kernel<float, GemmTranspose::nt, PerBatchLimit>("x.hpp"); }) ==
        "accepted");

  const kiln::Runtime runtime(quiet());
  const auto folder =
      std::filesystem::temp_directory_path() / ("kiln-epilogue-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const auto words_of_header = [&](const std::string& body) {
    std::ofstream(folder / "halved.hpp") << "#pragma once\n#include \"kiln/epilogue.hpp\"\n"
                                         << "struct Halved { float operator()(float sum, const "
                                            "kiln::epilogue::Place&) const { return "
                                         << body << "; } };\n";
    try {
      const auto v =
          runtime.tuned(gemm_kernel<float, GemmTranspose::nt, Halved>(folder / "halved.hpp"))
              .verify({8, 8, 8});
      return v.right ? std::string("right") : v.why;
    } catch (const kiln::Error& error) {
      return std::string(error.what());
    }
  };
  CHECK(words_of_header("sum / 2") == "right");
  CHECK(words_of_header("sum * 2") != "right");  // not what the host computes
  CHECK(has(words_of_header("halve_it(sum)"), "halve_it"));
  std::filesystem::remove_all(folder);
}
