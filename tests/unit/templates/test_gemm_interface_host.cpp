// The GEMM's kinds as programs use them, through a runtime on the host: workloads, buckets,
// verdicts and what is refused.
#include <algorithm>
#include <cmath>
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
/// So has this one, and it divides by its parameter.
struct Grouped {
  float operator()(float sum, const kiln::epilogue::Place& at, int group) const noexcept {
    return sum + static_cast<float>(at.column / group);
  }
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

/// A new folder for headers, which is deleted at the end.
struct Folder {
  Folder()
      : path(std::filesystem::temp_directory_path() /
             ("kiln-epilogue-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path / "own");
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  void header(const std::string& name, const std::string& parameters,
              const std::string& result) const {
    const bool grouped = !parameters.empty();
    std::ofstream(path / name) << "#pragma once\n#include \"kiln/epilogue.hpp\"\nstruct "
                               << (grouped ? "Grouped" : "Halved")
                               << " { float operator()(float sum, const kiln::epilogue::Place& at"
                               << parameters << ") const" << (grouped ? " noexcept" : "")
                               << " { return " << result << "; } };\n";
  }
  const std::filesystem::path path;
};

/// "right", or what is wrong.
template <class K, class Problem>
std::string verdict(const kiln::Runtime& runtime, const K& kernel, const Problem& problem) {
  try {
    const kiln::Verification v = runtime.tuned(kernel).verify(problem);
    return v.right ? "right" : v.why;
  } catch (const kiln::Error& error) {
    return error.what();
  }
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
  // Batches of C side by side: [m][batch][n].
  right(fused, GemmStridedProblem{33, 40, 50, 120, 50, 40, 3, 40, 33 * 50, 0});
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

TEST_CASE("gemm: sizes, leading dimensions, strides and overlaps that make no sense are refused",
          "[templates][host]") {
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
  CHECK(words({8, 16, 32, 32, 8, 16, 2, 16, 0, 0}) == "accepted");  // [m][batch][n]
  CHECK(has(words({8, 16, 32, 31, 8, 16, 2, 16, 0, 0}), "batches of C overlap"));
  CHECK(has(words({8, 16, 32, 32, 8, 16, 2, 15, 0, 0}), "batches of C overlap"));
  for (const GemmStridedProblem& p : {GemmStridedProblem{-1, 16, 32, 16, 8, 16, 1, 0, 0, 0},
                                      {8, -1, 32, 16, 8, 16, 1, 0, 0, 0},
                                      {8, 16, -5, 16, 8, 16, 1, 0, 0, 0},
                                      {8, 16, 32, 16, 8, 16, -1, 0, 0, 0}})
    CHECK(has(words(p), "negative"));
  const auto tight = runtime.tuned(gemm_kernel<float>());
  CHECK(has(refusal_of([&] { tight.prepare({8, 16, -5}); }), "negative"));

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

  // Columns of one buffer, 64 of them in a row: C has 16, A has 8.
  const auto side_by_side = [&](const float* a) {
    return refusal_of([&] {
      gemm(kiln::Stream{}, c, a, c + 3000, 8, 16, 32, std::int64_t{64}, std::int64_t{64},
           std::int64_t{16}, 1, std::int64_t{0}, std::int64_t{0}, std::int64_t{0});
    });
  };
  CHECK(side_by_side(c + 16) == "accepted");
  CHECK(side_by_side(c + 56) == "accepted");
  CHECK(has(side_by_side(c + 15), "C overlaps A or B"));
  CHECK(has(side_by_side(c + 57), "C overlaps A or B"));
}

TEST_CASE("gemm: a residual may be C itself, and no other array of an epilogue may overlap C",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime(quiet());
  using Fused = Chain<Bias<float>, kiln::epilogue::ScaledResidual<float>>;
  const auto gemm = runtime.tuned(gemm_kernel<float, GemmTranspose::nt, Fused>());
  constexpr int m = 5, n = 12, k = 8;
  std::vector<float> memory(512), a(m * k, 0.5f), b(n * k, 2.0f), bias(n, 1.0f);
  float* const c = memory.data() + 128;
  const auto launch = [&](const float* column, const float* residual, float factor) {
    std::fill(memory.begin(), memory.end(), 3.0f);
    return refusal_of(
        [&] { gemm(kiln::Stream{}, c, a.data(), b.data(), m, n, k, column, residual, factor); });
  };
  const auto all_are = [&](float value) {
    return std::all_of(c, c + m * n, [&](float element) { return element == value; });
  };
  CHECK(launch(bias.data(), c, 2.0f) == "accepted");
  CHECK(all_are(k + 1 + 2 * 3));
  const std::vector<float> nan(m * n, std::nanf(""));
  CHECK(launch(bias.data(), nan.data(), 0.0f) == "accepted");  // is not read
  CHECK(all_are(k + 1));
  CHECK(launch(bias.data(), c + m * n, 2.0f) == "accepted");
  CHECK(has(launch(bias.data(), c + 1, 2.0f), "C overlaps an array of the epilogue"));
  CHECK(has(launch(bias.data(), c - m * n + 1, 2.0f), "C overlaps an array of the epilogue"));
  CHECK(has(launch(c, c, 2.0f), "C overlaps an array of the epilogue"));
  CHECK(has(launch(c + m * n - 1, c, 2.0f), "C overlaps an array of the epilogue"));

  using Widened = kiln::epilogue::Residual<bfloat16>;  // C's elements are wider
  const auto other = runtime.tuned(gemm_kernel<float, GemmTranspose::nt, Widened>());
  CHECK(has(refusal_of([&] {
              other(kiln::Stream{}, c, a.data(), b.data(), m, n, k,
                    reinterpret_cast<const bfloat16*>(c));
            }),
            "C overlaps an array of the epilogue"));
}

TEST_CASE("gemm: numbers that are made for an epilogue fit limits and divisors",
          "[templates][host]") {
  const auto numbers_of = [](const auto& kernel) {
    kiln::Workload workload;
    kernel.workload({16, 16, 16}, workload);
    std::vector<double> numbers;
    for (std::size_t i = 6; i < workload.arguments().size(); ++i) {
      const auto& argument = workload.arguments()[i];
      if (argument.pointer) continue;
      const auto* const value = argument.bytes.data();
      numbers.push_back(argument.type == kiln::DataType::f32
                            ? *reinterpret_cast<const float*>(value)
                            : *reinterpret_cast<const int*>(value));
    }
    return numbers;
  };
  using kiln::epilogue::Clamp;
  for (const auto& numbers :
       {numbers_of(gemm_kernel<float, GemmTranspose::nt, Clamp>()),
        numbers_of(gemm_kernel<float, GemmTranspose::nt, Chain<Bias<float>, Clamp>>())}) {
    REQUIRE(numbers.size() == 2);
    CHECK(numbers[0] < numbers[1]);
  }
  CHECK(numbers_of(gemm_kernel<float, GemmTranspose::nt, Grouped>("x.hpp")).at(0) >= 1);

  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime(quiet());
  const Folder folder;
  folder.header("grouped.hpp", ", int group", "sum + static_cast<float>(at.column / group)");
  CHECK(verdict(runtime,
                gemm_kernel<float, GemmTranspose::nt, Grouped>(folder.path / "grouped.hpp"),
                GemmProblem{8, 24, 8}) == "right");
}

TEST_CASE("gemm: the header that is passed is used, whatever the working directory has",
          "[templates][host]") {
  if (!kiln::codegen::has_llvm()) KILN_SKIP("built without LLVM");
  const kiln::Runtime runtime(quiet());
  const Folder folder;
  folder.header("own/halved.hpp", "", "sum / 2");
  folder.header("halved.hpp", "", "sum * 3");
  std::ofstream(folder.path / "gemm.cuh") << "#error the wrong file\n";
  const auto verdict_in = [&](const std::filesystem::path& working, const std::string& header) {
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(working);
    std::string words = verdict(runtime, gemm_kernel<float, GemmTranspose::nt, Halved>(header),
                                GemmProblem{8, 8, 8});
    std::filesystem::current_path(before);
    return words;
  };
  CHECK(verdict_in(folder.path, "own/halved.hpp") == "right");
  CHECK(verdict_in(folder.path, folder.path / "own/halved.hpp") == "right");
  CHECK(verdict_in(folder.path / "own", "halved.hpp") == "right");
  CHECK(verdict_in(folder.path, "halved.hpp") != "right");
}

TEST_CASE("gemm: problems share a tuning by what copies can do with leading dimensions",
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
  CHECK(shape_of(p).storable());
  GemmStridedProblem odd = p;
  odd.lda = 105;
  CHECK(values(p) != values(odd));
  CHECK_FALSE(shape_of(odd).storable());
  CHECK(values(bucket(odd)) == values(odd));
  odd = p;
  odd.stride_c = 7201;
  CHECK_FALSE(shape_of(odd).storable());
  odd.stride_c = GemmStride{1} << 39;  // more than a map can have
  CHECK_FALSE(shape_of(odd).storable());

  // For [k][m] without gaps, m is the leading dimension.
  const auto tight = gemm_kernel<bfloat16, GemmTranspose::tn>().bucket;
  CHECK(tight({104, 64, 32}).m == 112);
  CHECK(tight({100, 64, 32}).m == 100);
  CHECK(gemm_kernel<bfloat16>().bucket({100, 64, 32}).m == 112);

  // 4 elements of 4 bytes are 16 bytes.
  const auto floats = gemm_strided_kernel<float>().bucket;
  const auto lda_of = [&](GemmStride lda) {
    return floats({16, 64, 32, 64, lda, 32, 1, 0, 0, 0}).lda;
  };
  CHECK(lda_of(36) == lda_of(40));
  CHECK(lda_of(36) != lda_of(38));
  CHECK(gemm_kernel<float, GemmTranspose::tn>().bucket({100, 64, 32}).m == 112);
  CHECK(gemm_kernel<float, GemmTranspose::tn>().bucket({102, 64, 32}).m == 102);
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
  const Folder folder;
  const auto words_of_header = [&](const std::string& body) {
    folder.header("halved.hpp", "", body);
    return verdict(runtime,
                   gemm_kernel<float, GemmTranspose::nt, Halved>(folder.path / "halved.hpp"),
                   GemmProblem{8, 8, 8});
  };
  CHECK(words_of_header("sum / 2") == "right");
  CHECK(words_of_header("sum * 2") != "right");  // not what the host computes
  CHECK(has(words_of_header("halve_it(sum)"), "halve_it"));
}
