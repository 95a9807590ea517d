// The GEMMs as choices: what programs make with types and what is registered by name are the same.
#include "kiln/kernels/gemm_fp8_choice.hpp"
#include "kiln/registry.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::templates;

namespace {

auto fields_of(const CublasltGemm& g, const Values& problem) {
  const MatrixProduct p = g.product(problem);
  return std::tuple(g.type, g.b_type, g.c_type, g.c, g.a, g.b, g.scale_a, g.scale_b,
                    g.fast_accumulation, g.top, g.workspace, p.m, p.n, p.k, p.a_transposed,
                    p.b_transposed, p.ldc, p.lda, p.ldb, p.batch);
}

void check_same(const char* name, const detail::ChoiceDescription& typed, const Values& problem) {
  CAPTURE(name);
  const detail::ChoiceDescription named = shipped_kernels().make_choice(name, "bf16");
  CHECK_NOTHROW(named.validate());
  CHECK(named.name == typed.name);
  CHECK(named.types == typed.types);
  CHECK(named.operation.name == typed.operation.name);
  CHECK(named.operation.types == typed.operation.types);
  CHECK(named.operation.arguments == typed.operation.arguments);
  CHECK(named.operation.problem_fields == typed.operation.problem_fields);
  for (const auto* choice : {&named, &typed}) {
    REQUIRE(choice->alternatives.size() == 2);
    CHECK(choice->alternatives[0].name == "cublaslt");
    CHECK(choice->alternatives[1].name == "template");
    CHECK(choice->alternatives[1].kernel->name == choice->operation.name);
  }
  CHECK(fields_of(*named.alternatives[0].cublaslt, problem) ==
        fields_of(*typed.alternatives[0].cublaslt, problem));
}

}  // namespace

TEST_CASE("choices by name are those with types", "[templates][choice]") {
  check_same("gemm", gemm_choice<bfloat16>().description(), {5, 24, 48});
  check_same("gemm_tn", gemm_choice<bfloat16, GemmTranspose::tn>().description(), {5, 24, 48});
  check_same("gemm_fp8", gemm_fp8_choice<>().description(), {5, 24, 48});
  check_same("gemm_fp8_fast", gemm_fp8_choice<Fp8Sums::fast>().description(), {5, 24, 48});
}

TEST_CASE("the GEMM of 8-bit floats tells cuBLASLt where its scales are", "[templates][choice]") {
  const auto exact = gemm_fp8_choice<>().description(),
             fast = gemm_fp8_choice<Fp8Sums::fast>().description();
  CHECK(exact.name == "gemm_fp8");
  CHECK(fast.name == "gemm_fp8");
  CHECK(exact.types != fast.types);  // in records
  for (const auto* choice : {&exact, &fast}) {
    const CublasltGemm& gemm = *choice->alternatives[0].cublaslt;
    const auto& arguments = choice->operation.arguments;
    REQUIRE(arguments.size() == 8);
    CHECK(arguments[gemm.c] == "__nv_bfloat16*");
    CHECK(arguments[gemm.a] == "const __nv_fp8_e4m3*");
    CHECK(arguments[gemm.b] == "const __nv_fp8_e4m3*");
    CHECK(gemm.type == CublasltGemm::Type::float8_e4m3);
    CHECK(gemm.b_type.value_or(gemm.type) == CublasltGemm::Type::float8_e4m3);
    CHECK(gemm.c_type == CublasltGemm::Type::bfloat16);
    CHECK(gemm.scale_a == 6u);
    CHECK(gemm.scale_b == 7u);
    CHECK(arguments[6] == "const float*");
    CHECK(arguments[7] == "const float*");
    CHECK(gemm.fast_accumulation == (choice == &fast));
  }
}
