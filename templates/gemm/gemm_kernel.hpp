// The typed GEMMs of gemm.hpp for C++ programs.
//
//   auto gemm = runtime.tuned(kiln::templates::gemm_kernel<kiln::bfloat16>());
//   gemm(stream, c, a, b, m, n, k);  // C = A * B^T, without gaps
//
// Other transpositions and an epilogue (kiln/epilogue.hpp) are template parameters; the epilogue's
// arguments follow the sizes. Pass the header of an epilogue of your own:
//
//   using BiasGelu = Chain<Bias<kiln::bfloat16>, Gelu>;
//   auto fused = runtime.tuned(gemm_kernel<kiln::bfloat16, GemmTranspose::nn, BiasGelu>());
//   fused(stream, c, a, b, m, n, k, bias);
//   auto leaky = runtime.tuned(
//       gemm_kernel<kiln::bfloat16, GemmTranspose::nt, LeakyRelu>("/path/to/leaky_relu.hpp"));
//   leaky(stream, c, a, b, m, n, k, 0.01f);
//
// With leading dimensions, and with batches of matrices at equal strides:
//
//   auto batched = runtime.tuned(gemm_strided_kernel<float>());
//   batched(stream, c, a, b, m, n, k, ldc, lda, ldb, batch, stride_c, stride_a, stride_b);
//
// Negative sizes, a k above kMostDepth, a leading dimension that is less than a row, and batches of
// C that overlap are a UserError. So is a C that overlaps A, B or an array of the epilogue, except
// a residual that is C itself; launches through `at` and by name do not check this. An empty C is
// left alone; with k = 0 all sums are 0. A residual is as aligned as C must be (gemm.hpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "gemm.hpp"
#include "gemm_parameters.hpp"
#include "kiln/epilogue.hpp"
#include "kiln/error.hpp"
#include "kiln/kernel.hpp"
#include "kiln/paths.hpp"

namespace kiln::templates {

/// What a GEMM is without its signature. T is float, kiln::float16, kiln::bfloat16, or
/// Fp8<kiln::bfloat16, ...> with op nt. `fetched`: an argument that Gemm::fetches() is about.
template <class T, GemmTranspose op, class Problem>
Kernel<Gemm, Problem, void()> gemm_base(std::optional<std::size_t> fetched);

/// The arguments of epilogue::BlockScales.
struct GemmBlockScales {
  const float* a;
  const float* b;
  int rows = 0;  ///< of the product that A's scales are for; 0: all
};

/// `count` sums of a batch's row, from `column` on. Called by several threads.
using GemmStore = std::function<void(const float* sums, int batch, int row, int column, int count)>;
/// op(A) * op(B) on the host. Sums, those of blocks of k times their `scales` too, are added in
/// double, and are rounded to float once. Uses all cores.
template <class T>
void gemm_sums(GemmTranspose op, const GemmShape<true>& shape, const T* a, const T* b,
               const GemmStore& store, const GemmBlockScales* scales = nullptr);

namespace gemm_detail {

using epilogue::detail::Parameters;

template <class Problem>
struct GemmSizes;
template <>
struct GemmSizes<GemmProblem> {
  using Type = Parameters<int, int, int>;
};
template <>
struct GemmSizes<GemmStridedProblem> {
  using I = std::int64_t;
  using Type = Parameters<int, int, int, I, I, I, int, I, I, I>;
};

/// The type's name as this compiler spells it, which kernel compilers can read.
template <class E>
std::string epilogue_name() {
  constexpr std::string_view kMark = "E = ";
  std::string_view text = __PRETTY_FUNCTION__;
  text.remove_prefix(text.find(kMark) + kMark.size());
  text = text.substr(0, text.find_first_of(";]"));
  if (text.find_first_of("{(") != text.npos)
    throw UserError("the epilogue " + std::string(text) +
                    " is a local or unnamed type; define it at namespace scope in a header");
  return std::string(text);
}

/// A file of the GEMM's with an epilogue's header behind it, if there is one.
inline KernelSource with_header(const KernelSource& source, const std::filesystem::path& header) {
  if (header.empty()) return source;
  const std::string file = source.file.lexically_relative(templates_dir()).generic_string();
  // Quotes would find files of these names in the working directory first.
  return {.text = "#include <" + file + ">\n#include <" + header.filename().string() + ">\n",
          .include_dirs = {std::filesystem::absolute(header).parent_path(), templates_dir()}};
}

/// Fills in the data of an epilogue's parameters P, too.
template <class... P, class Problem, class Shape>
void add_parameters(Kernel<Gemm, Problem, void()>& base, const Shape& shape) {
  if constexpr (sizeof...(P) > 0)
    base.workload = [fill = std::move(base.workload), shape](const Problem& p, Workload& w) {
      fill(p, w);
      int index = 0;
      (GemmParameter<P>::add(w, shape(p), index++), ...);
    };
}

/// A kernel that is `base` otherwise, with the data of an epilogue's parameters P behind its own.
template <class Type, class... P, class Shape>
Type with_signature(Kernel<Gemm, typename Type::ProblemType, void()>&& base,
                    const std::filesystem::path& header, const Shape& shape,
                    decltype(Type::problem) problem, decltype(Type::reference) reference) {
  add_parameters<P...>(base, shape);
  return {.name = std::move(base.name),
          .source = with_header(base.source, header),
          .entry = std::move(base.entry),
          .config_type = std::move(base.config_type),
          .types = std::move(base.types),
          .space = base.space,
          .configs = base.configs,
          .launch = base.launch,
          .maps = std::move(base.maps),
          .workspace = base.workspace,
          .steps = std::move(base.steps),
          .problem = problem,
          .relations = std::move(base.relations),
          .bucket = base.bucket,
          .workload = std::move(base.workload),
          .draws = std::move(base.draws),
          .reference = std::move(reference),
          .device_reference = std::move(base.device_reference),
          .tolerance = base.tolerance,
          .flops = std::move(base.flops),
          .bytes = std::move(base.bytes),
          .cost = std::move(base.cost),
          .untuned_by_cost = base.untuned_by_cost,
          .numerics = std::move(base.numerics)};
}

/// The same as a definition, without a typed kernel on the way: that is much less code.
template <class... P, class Problem, class Shape, class... Args>
KernelDefinition defined(Kernel<Gemm, Problem, void()>&& base, const Shape& shape,
                         void (*reference)(Args...)) {
  add_parameters<P...>(base, shape);
  KernelDefinition d = kiln::detail::without_signature(base, kiln::detail::kDeviceNames<Args...>);
  d.reference = kiln::detail::untyped_reference<Args...>(reference);
  d.validate();
  return d;
}

/// The scales among the arguments of an epilogue that begins with BlockScales.
template <class... Rest>
GemmBlockScales block_scales(const float* a, const float* b, const Rest&...) {
  return {a, b};
}

template <class T, GemmTranspose op, class Problem, class E,
          class S = typename GemmSizes<Problem>::Type, class P = epilogue::detail::parameters_of<E>>
struct TypedGemm;
template <class T, GemmTranspose op, class Problem, class E, class... S, class... P>
struct TypedGemm<T, op, Problem, E, Parameters<S...>, Parameters<P...>> {
  using In = GemmOperand<T>;
  using Out = GemmResult<T>;
  static_assert(!GemmTypes<T>::kFp8 || (op == GemmTranspose::nt && std::is_same_v<Out, bfloat16>),
                "Fp8: op nt, and C of bfloat16");
  static constexpr bool kScaled = epilogue::detail::kScalesBlocks<Parameters<P...>>;
  static_assert(kBlockScaled<T> == kScaled,
                "Fp8Sums::scaled and an epilogue that begins with BlockScales belong together");
  using Type = Kernel<Gemm, Problem, void(Out*, const In*, const In*, S..., GemmArgument<P>...)>;

  static Problem problem(Out* c, const In* a, const In* b, S... sizes,
                         GemmArgument<P>... parameters) {
    const Problem p{sizes...};
    const GemmShape<true> shape = gemm_shape<op>(p).general();
    const int batch = shape.batch;
    const GemmArea area = gemm_area(c, shape.c_span(), batch, shape.n, shape.ldc);
    if (overlap(area, gemm_area(a, shape.a_span(op), batch, shape.a_row(op), shape.lda)) ||
        overlap(area, gemm_area(b, shape.b_span(op), batch, shape.b_row(op), shape.ldb)))
      throw UserError("gemm: C overlaps A or B");
    (check_overlap<P>(c, area, shape, parameters), ...);
    return p;
  }

  static void reference(Out* c, const In* a, const In* b, S... sizes,
                        GemmArgument<P>... parameters) {
    const GemmShape<true> p = gemm_shape<op>(Problem{sizes...}).general();
    const auto store = [&](const float* sums, int batch, int row, int column, int count) {
      epilogue::Place at{row, column, batch, batch * p.stride_c + row * p.ldc + GemmStride{column}};
      for (int j = 0; j < count; ++j, ++at.column, ++at.element)
        c[at.element] = Out(E{}(sums[j], at, parameters...));
    };
    if constexpr (kScaled) {
      const GemmBlockScales scales = block_scales(parameters...);
      gemm_sums<In>(op, p, a, b, store, &scales);
    } else {
      gemm_sums<In>(op, p, a, b, store);
    }
  }

  static Kernel<Gemm, Problem, void()> base() {
    auto base = gemm_base<T, op, Problem>(fetched_parameter<Out, P...>(3 + sizeof...(S)));
    if (op != GemmTranspose::nt || !std::is_same_v<E, epilogue::Nothing>) {
      base.types.push_back("kiln::templates::GemmTranspose::" + std::string(name(op)));
      base.types.push_back(epilogue_name<E>());
      for (std::string& type : argument_types<Out, P...>()) base.types.push_back(std::move(type));
    }
    return base;
  }
  static GemmShape<true> shape(const Problem& p) { return gemm_shape<op>(p).general(); }

  static Type kernel(const std::filesystem::path& header) {
    return with_signature<Type, P...>(base(), header, shape, problem, reference);
  }
  static KernelDefinition definition() { return defined<P...>(base(), shape, reference); }

 private:
  static constexpr std::string_view name(GemmTranspose transpose) {
    constexpr std::string_view kNames[] = {"nt", "nn", "tn", "tt"};
    return kNames[static_cast<int>(transpose)];
  }
};

}  // namespace gemm_detail

/// Arguments: C, A, B, m, n, k, the epilogue's. T is float, kiln::float16, kiln::bfloat16, or
/// Fp8<kiln::bfloat16, ...> with op nt (gemm_fp8.hpp).
template <class T, GemmTranspose op = GemmTranspose::nt, class Epilogue = epilogue::Nothing>
using GemmKernel = typename gemm_detail::TypedGemm<T, op, GemmProblem, Epilogue>::Type;
template <class T, GemmTranspose op = GemmTranspose::nt, class Epilogue = epilogue::Nothing>
GemmKernel<T, op, Epilogue> gemm_kernel(const std::filesystem::path& epilogue_header = {}) {
  return gemm_detail::TypedGemm<T, op, GemmProblem, Epilogue>::kernel(epilogue_header);
}

/// Arguments: C, A, B, m, n, k, ldc, lda, ldb, batch, stride_c, stride_a, stride_b, the epilogue's.
template <class T, GemmTranspose op = GemmTranspose::nt, class Epilogue = epilogue::Nothing>
using GemmStridedKernel =
    typename gemm_detail::TypedGemm<T, op, GemmStridedProblem, Epilogue>::Type;
template <class T, GemmTranspose op = GemmTranspose::nt, class Epilogue = epilogue::Nothing>
GemmStridedKernel<T, op, Epilogue> gemm_strided_kernel(
    const std::filesystem::path& epilogue_header = {}) {
  return gemm_detail::TypedGemm<T, op, GemmStridedProblem, Epilogue>::kernel(epilogue_header);
}

}  // namespace kiln::templates
