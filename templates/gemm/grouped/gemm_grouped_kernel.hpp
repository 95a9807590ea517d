// The typed kernels of gemm_grouped.hpp for C++ programs.
#pragma once

#include "../gemm_kernel.hpp"
#include "gemm_grouped.hpp"

namespace kiln::templates {

/// What a grouped GEMM is without its signature. T is float, kiln::float16, kiln::bfloat16 or
/// Fp8<kiln::bfloat16, Fp8Sums::scaled>.
template <class T, class Problem>
Kernel<Gemm, Problem, void()> gemm_grouped_base();

namespace gemm_detail {

template <>
struct GemmSizes<GroupedProblem> {
  using Type = Parameters<int, int, int, int>;
};
template <>
struct GemmSizes<PaddedProblem> {
  using Type = Parameters<int, int, int, int, int>;
};
template <>
struct GemmSizes<MaskedProblem> {
  using Type = Parameters<int, int, int, int, int>;
};

template <class T, class Problem, class E, class S = typename GemmSizes<Problem>::Type,
          class P = epilogue::detail::parameters_of<E>>
struct TypedGroupedGemm;
template <class T, class Problem, class E, class... S, class... P>
struct TypedGroupedGemm<T, Problem, E, Parameters<S...>, Parameters<P...>> {
  static constexpr bool kMasked = std::is_same_v<Problem, MaskedProblem>;
  static constexpr GemmTranspose kOp = GemmTranspose::nt;
  using In = GemmOperand<T>;
  using Out = GemmResult<T>;
  static constexpr bool kScaled = epilogue::detail::kScalesBlocks<Parameters<P...>>;
  static_assert(kBlockScaled<T> == kScaled && GemmTypes<T>::kFp8 == kScaled,
                "Fp8: with Fp8Sums::scaled, and an epilogue that begins with BlockScales");
  using Type =
      Kernel<Gemm, Problem, void(Out*, const In*, const In*, const int*, S..., GemmArgument<P>...)>;

  /// All rows that there are.
  static GemmShape<true> rows_of(const Problem& p) {
    GemmShape<true> shape = gemm_shape<kOp>(p);
    if (!kMasked) shape.batch = 1;
    return shape;
  }

  static Problem problem(Out* c, const In* a, const In* b, const int*, S... sizes,
                         GemmArgument<P>... parameters) {
    const Problem p{sizes...};
    const GemmShape<true> shape = gemm_shape<kOp>(p), rows = rows_of(p);
    const GemmArea area = gemm_area(c, rows.c_span(), shape.batch, shape.n, shape.ldc);
    if (overlap(area, gemm_area(a, rows.a_span(kOp), shape.batch, shape.k, shape.lda)) ||
        overlap(area, gemm_area(b, shape.b_span(kOp), shape.batch, shape.k, shape.ldb)))
      throw UserError("gemm: C overlaps A or B");
    (check_overlap<P>(c, area, shape, parameters), ...);
    return p;
  }

  static void reference(Out* c, const In* a, const In* b, const int* sizes, S... scalars,
                        GemmArgument<P>... parameters) {
    const Problem problem{scalars...};
    const GemmShape<true> p = gemm_shape<kOp>(problem);
    for (int group = 0, end = 0; group < p.batch; ++group) {
      int begin = kMasked ? 0 : end;
      if constexpr (requires { problem.row_alignment; })
        begin = group_begin(end, problem.row_alignment, p.m);
      end = group_end(sizes[group], begin, p.m);
      GemmShape<true> own = p;
      own.m = end - begin;
      own.batch = 1;
      const GemmStride first = group * p.stride_c + GemmStride{begin} * p.ldc;
      const In* const its_a = a + group * p.stride_a + GemmStride{begin} * p.lda;
      const In* const its_b = b + group * p.stride_b;
      const auto store = [&](const float* sums, int, int row, int column, int count) {
        epilogue::Place at{begin + row, column, group, first + row * p.ldc + GemmStride{column}};
        for (int j = 0; j < count; ++j, ++at.column, ++at.element)
          c[at.element] = Out(E{}(sums[j], at, parameters...));
      };
      if constexpr (kScaled) {
        const GemmBlockScales scales = of_group(block_scales(parameters...), p, group, begin);
        gemm_sums<In>(kOp, own, its_a, its_b, store, &scales);
      } else {
        gemm_sums<In>(kOp, own, its_a, its_b, store);
      }
    }
  }

  static Kernel<Gemm, Problem, void()> base() {
    auto base = gemm_grouped_base<T, Problem>();
    if (!std::is_same_v<E, epilogue::Nothing>) {
      base.types.push_back(epilogue_name<E>());
      (base.types.push_back(device_name<GemmArgument<P>>()), ...);
    }
    return base;
  }
  static GemmShape<true> shape(const Problem& p) { return gemm_shape<kOp>(p); }

  /// From a group's row on.
  static GemmBlockScales of_group(GemmBlockScales scales, const GemmShape<true>& p, int group,
                                  int row) {
    const GemmStride blocks = p.k / kScaleBlock;
    scales.a += (kMasked ? group * blocks * scale_leading(p.m) : 0) + row;
    scales.b += group * blocks * scale_blocks(p.n);
    scales.rows = p.m;
    return scales;
  }

  static Type kernel(const std::filesystem::path& header) {
    return with_signature<Type, P...>(base(), header, shape, problem, reference);
  }
  static KernelDefinition definition() { return defined<P...>(base(), shape, reference); }
};

}  // namespace gemm_detail

/// Arguments: C, A, B, ends, m, n, k, groups, the epilogue's. T is float, kiln::float16 or
/// kiln::bfloat16 (8-bit floats: gemm_grouped_fp8.hpp).
template <class T, class Epilogue = epilogue::Nothing>
using GemmGroupedKernel = typename gemm_detail::TypedGroupedGemm<T, GroupedProblem, Epilogue>::Type;
template <class T, class Epilogue = epilogue::Nothing>
GemmGroupedKernel<T, Epilogue> gemm_grouped_kernel(
    const std::filesystem::path& epilogue_header = {}) {
  return gemm_detail::TypedGroupedGemm<T, GroupedProblem, Epilogue>::kernel(epilogue_header);
}

/// Arguments: C, A, B, ends, m, n, k, groups, row_alignment, the epilogue's.
template <class T, class Epilogue = epilogue::Nothing>
using GemmPaddedKernel = typename gemm_detail::TypedGroupedGemm<T, PaddedProblem, Epilogue>::Type;
template <class T, class Epilogue = epilogue::Nothing>
GemmPaddedKernel<T, Epilogue> gemm_padded_kernel(
    const std::filesystem::path& epilogue_header = {}) {
  return gemm_detail::TypedGroupedGemm<T, PaddedProblem, Epilogue>::kernel(epilogue_header);
}

/// Arguments: C, A, B, counts, m, n, k, groups, expected, the epilogue's.
template <class T, class Epilogue = epilogue::Nothing>
using GemmMaskedKernel = typename gemm_detail::TypedGroupedGemm<T, MaskedProblem, Epilogue>::Type;
template <class T, class Epilogue = epilogue::Nothing>
GemmMaskedKernel<T, Epilogue> gemm_masked_kernel(
    const std::filesystem::path& epilogue_header = {}) {
  return gemm_detail::TypedGroupedGemm<T, MaskedProblem, Epilogue>::kernel(epilogue_header);
}

}  // namespace kiln::templates
