// The typed kernels of gemm_grouped.hpp for C++ programs.
#pragma once

#include "gemm_grouped.hpp"
#include "gemm_kernel.hpp"

namespace kiln::templates {

/// What a grouped GEMM is without its signature. T is float, kiln::float16 or kiln::bfloat16.
template <class T, class Problem>
Kernel<Gemm, Problem, void()> gemm_grouped_base();

namespace gemm_detail {

template <>
struct GemmSizes<GroupedProblem> {
  using Type = Parameters<int, int, int, int>;
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
  using Type =
      Kernel<Gemm, Problem, void(T*, const T*, const T*, const int*, S..., GemmArgument<P>...)>;

  /// All rows that there are.
  static GemmShape<true> rows_of(const Problem& p) {
    GemmShape<true> shape = gemm_shape<kOp>(p);
    if (!kMasked) shape.batch = 1;
    return shape;
  }

  static Problem problem(T* c, const T* a, const T* b, const int*, S... sizes,
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

  static void reference(T* c, const T* a, const T* b, const int* sizes, S... scalars,
                        GemmArgument<P>... parameters) {
    const GemmShape<true> p = gemm_shape<kOp>(Problem{scalars...});
    for (int group = 0, end = 0; group < p.batch; ++group) {
      const int begin = kMasked ? 0 : end;
      end = group_end(sizes[group], begin, p.m);
      GemmShape<true> own = p;
      own.m = end - begin;
      own.batch = 1;
      const GemmStride first = group * p.stride_c + GemmStride{begin} * p.ldc;
      gemm_sums<T>(kOp, own, a + group * p.stride_a + GemmStride{begin} * p.lda,
                   b + group * p.stride_b,
                   [&](const float* sums, int, int row, int column, int count) {
                     epilogue::Place at{begin + row, column, group,
                                        first + row * p.ldc + GemmStride{column}};
                     for (int j = 0; j < count; ++j, ++at.column, ++at.element)
                       c[at.element] = T(E{}(sums[j], at, parameters...));
                   });
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

  static Type kernel(const std::filesystem::path& header) {
    return with_signature<Type, P...>(base(), header, shape, problem, reference);
  }
  static KernelDefinition definition() { return defined<P...>(base(), shape, reference); }
};

}  // namespace gemm_detail

/// Arguments: C, A, B, ends, m, n, k, groups, the epilogue's. T is float, kiln::float16 or
/// kiln::bfloat16.
template <class T, class Epilogue = epilogue::Nothing>
using GemmGroupedKernel = typename gemm_detail::TypedGroupedGemm<T, GroupedProblem, Epilogue>::Type;
template <class T, class Epilogue = epilogue::Nothing>
GemmGroupedKernel<T, Epilogue> gemm_grouped_kernel(
    const std::filesystem::path& epilogue_header = {}) {
  return gemm_detail::TypedGroupedGemm<T, GroupedProblem, Epilogue>::kernel(epilogue_header);
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
