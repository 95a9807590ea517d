// The GEMM as a choice on real hardware: cuBLASLt computes what the kernel computes, however
// operands lie, is captured with its workspace, and is found again on record.
#include "gemm_test.hpp"
#include "kiln/kernels/gemm_fp8_choice.hpp"
#include "temporary_directory.hpp"

using namespace kiln::templates;

namespace {

kiln::RuntimeOptions choosing_options(const std::filesystem::path& folder) {
  kiln::RuntimeOptions options;
  options.device = "cuda:0";
  options.store.directory = folder;
  options.tuning.max_seconds = 4;
  return options;
}

/// All of cuBLASLt's candidates are verified against the kernel's reference, with guard zones.
template <class T, GemmTranspose op>
bool multiplies(const kiln::Runtime& runtime) {
  const kiln::ChoiceOptions only{.backends = {"cublaslt"}};
  const auto tight = kiln::tuned(runtime, gemm_choice<T, op>(), only);
  const auto padded = kiln::tuned(runtime, gemm_strided_choice<T, op>(), only);
  if (const std::string why = tight.alternatives({64, 64, 64}).front().why_not; !why.empty()) {
    kiln::test::say_skipped("cuBLASLt: " + why);
    return false;
  }
  kiln::TuneOptions options;
  options.max_seconds = 2;
  options.retune = true;  // each is measured here
  for (const GemmProblem& p : {GemmProblem{128, 256, 64}, GemmProblem{16, 72, 40}}) {
    const kiln::TuneResult result = tight.tune(p, options);
    CHECK_FALSE(result.from_store);
    CHECK(result.count(kiln::CandidateStatus::measured) > 0);
    CHECK(result.count(kiln::CandidateStatus::wrong_result) == 0);
    CHECK(result.count(kiln::CandidateStatus::launch_failed) == 0);
  }
  const kiln::TuneResult result =
      padded.tune({64, 72, 40, 128, 128, 128, 3, 64 * 128, 128 * 128, 128 * 128}, options);
  CHECK(result.count(kiln::CandidateStatus::measured) > 0);
  CHECK(result.count(kiln::CandidateStatus::wrong_result) == 0);
  return true;
}

template <class T>
void check_transposes() {
  const kiln::test::TemporaryDirectory folder;
  const kiln::Runtime runtime(choosing_options(folder.path()));
  if (!multiplies<T, GemmTranspose::nt>(runtime)) return;
  multiplies<T, GemmTranspose::nn>(runtime);
  multiplies<T, GemmTranspose::tn>(runtime);
  multiplies<T, GemmTranspose::tt>(runtime);
}

/// All candidates are verified against the kernel's reference, with guard zones.
template <Fp8Sums sums>
void check_8_bits() {
  const kiln::test::TemporaryDirectory folder;
  const kiln::Runtime runtime(choosing_options(folder.path()));
  const kiln::ChoiceOptions only{.backends = {"cublaslt"}};
  const auto gemm = kiln::tuned(runtime, gemm_fp8_choice<sums>(), only);
  const auto why_not = [&](const GemmProblem& p) { return gemm.alternatives(p).front().why_not; };
  if (const std::string why = why_not({64, 64, 64}); !why.empty()) {
    kiln::test::say_skipped("cuBLASLt: " + why);
    return;
  }
  CHECK(why_not({64, 64, 72}) == "of 8-bit floats k must be a multiple of 16; it is 72");
  CHECK(why_not({64, 68, 64}) == "of 8-bit floats n must be a multiple of 8; it is 68");
  kiln::TuneOptions options;
  options.max_seconds = 2;
  options.retune = true;
  for (const GemmProblem& p :
       {GemmProblem{128, 256, 64}, GemmProblem{16, 80, 48}, GemmProblem{7, 1040, 272},
        GemmProblem{300, 512, 2048}, GemmProblem{16, 72, 48}}) {
    CAPTURE(p.m, p.n, p.k);
    if (p.n % 16 != 0 && !why_not(p).empty())
      continue;  // a library may want more than it documents
    const kiln::TuneResult result = gemm.tune(p, options);
    CHECK(result.count(kiln::CandidateStatus::measured) > 0);
    CHECK(result.count(kiln::CandidateStatus::wrong_result) == 0);
    CHECK(result.count(kiln::CandidateStatus::launch_failed) == 0);
  }
}

}  // namespace

TEST_CASE("cuBLASLt multiplies 8-bit floats as the GEMM does", "[gpu][choice]") {
  SECTION("exact sums") { check_8_bits<Fp8Sums::exact>(); }
  SECTION("fast sums") { check_8_bits<Fp8Sums::fast>(); }
}

TEST_CASE("cuBLASLt multiplies as the GEMM does", "[gpu][choice]") {
  SECTION("float") { check_transposes<float>(); }
  SECTION("float16") { check_transposes<kiln::float16>(); }
  SECTION("bfloat16") { check_transposes<kiln::bfloat16>(); }
}

TEST_CASE("a GEMM's choice is tuned once, and the next runtime finds it", "[gpu][choice]") {
  const kiln::test::TemporaryDirectory folder;
  const auto chosen = [&](bool& on_record) {
    const kiln::Runtime runtime(choosing_options(folder.path()));
    const auto gemm = kiln::tuned(runtime, gemm_choice<kiln::bfloat16>());
    on_record = gemm.known({512, 512, 512}).has_value();
    const kiln::ChosenAlternative found = gemm.chosen({512, 512, 512});
    CHECK((runtime.statistics().tuned == 0) == on_record);
    return found.text;
  };
  bool first = true, second = false;
  const std::string text = chosen(first);
  CHECK(text.starts_with("alternative="));
  CHECK_FALSE(first);
  CHECK(chosen(second) == text);
  CHECK(second);
}
