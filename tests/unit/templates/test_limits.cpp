// Problems that are too large for the sizes that kernels count with.
#include <cstdint>
#include <map>
#include <string>

#include "kiln/kernels/gemm_all_gather.hpp"
#include "kiln/kernels/gemm_experts_combine.hpp"
#include "kiln/kernels/gemm_experts_gather.hpp"
#include "kiln/kernels/gemm_reduce_scatter.hpp"
#include "kiln/registry.hpp"
#include "kiln_test.hpp"

using namespace kiln;

namespace {

/// Why a call is refused; empty: it is not.
template <class F>
std::string refusal(const F& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

/// One product of small matrices, but for k.
Values with_depth(const KernelDefinition& kernel, std::int64_t k) {
  const std::map<std::string, std::int64_t> others{
      {"k", k},           {"lda", 1LL << 31}, {"ldb", 1LL << 31},
      {"ldc", 1LL << 31}, {"batch", 1},       {"row_alignment", 128},
      {"stride_a", 0},    {"stride_b", 0},    {"stride_c", 0}};
  Values problem;
  for (const std::string& field : kernel.problem_fields)
    problem.push_back(others.contains(field) ? others.at(field) : 8);
  return problem;
}

}  // namespace

TEST_CASE("products refuse a k that they could not walk", "[templates]") {
  const Registry registry = shipped_kernels();
  int tried = 0;
  for (const RegisteredKernel& registered : registry.kernels()) {
    if (!registered.name.starts_with("gemm")) continue;
    const KernelDefinition kernel = registry.make(registered.name, registered.types.back());
    INFO(kernel.name);
    const auto refused = [&](std::int64_t k) {
      return refusal([&] { kernel.bucketed(with_depth(kernel, k)); });
    };
    ++tried;
    CHECK(refused(templates::kMostDepth) == "");
    const std::string why = refused(templates::kMostDepth + 128);
    CHECK(why.find("k is 2147418240, and") != std::string::npos);
    CHECK(why.find("2^31 - 2^16") != std::string::npos);
  }
  CHECK(tried > 50);
}

TEST_CASE("GEMMs of ranks refuse more rows of all ranks than an int counts", "[templates]") {
  using namespace templates;
  const auto refused = [](const auto& call) {
    return refusal(call).find("more than 2^31 - 1 rows") != std::string::npos;
  };
  constexpr int kHalf = 1 << 30;
  for (const int columns : {0, 64}) {
    CHECK(refused([&] { all_gather_bytes<bfloat16>(kHalf, columns, 2); }));
    CHECK(refused([&] { reduce_scatter_bytes<bfloat16>(kHalf, columns, 2); }));
    CHECK(refused([&] { expert_combine_bytes<bfloat16>(kHalf, columns, 2); }));
    CHECK(refused([&] { expert_gather_bytes<bfloat16>(kHalf, columns, 1, 2); }));
    // As many fit, but not as many as they are tuned as.
    CHECK(refused([&] { all_gather_bytes<bfloat16>(kHalf / 4 + 1, columns, 7); }));
    for (const int rows : {kHalf + 1, 2'000'000'000, 2'147'483'647}) {
      CHECK(refused([&] { all_gather_bytes<bfloat16>(rows, columns, 2); }));
      CHECK(refused([&] { expert_combine_bytes<bfloat16>(rows, columns, 2); }));
    }
    CHECK_FALSE(refused([&] { all_gather_bytes<bfloat16>(kHalf, columns, 1); }));
    CHECK_FALSE(refused([&] { reduce_scatter_bytes<bfloat16>(kHalf / 2, columns, 3); }));
  }
  const std::string deep = refusal([] { all_gather_bytes<bfloat16>(1, kMostDepth + 1, 2); });
  CHECK(deep.find("2^31 - 2^16") != std::string::npos);
}
