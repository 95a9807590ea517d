// The parameters of a GEMM's epilogue as arguments of a launch, and which arrays C may overlap.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "kiln/block_scales.hpp"
#include "kiln/epilogue.hpp"
#include "kiln/error.hpp"
#include "kiln/workload.hpp"
#include "shared/gemm_problem.hpp"

namespace kiln::templates::gemm_detail {

/// Where an array's elements lie, in bytes. `pitch`: from one row to the next; 0: not of one kind.
struct GemmArea {
  std::uintptr_t begin;
  GemmStride span, row, pitch;
};
/// One batch has rows of `row` elements.
template <class T>
GemmArea gemm_area(const T* array, GemmStride span, int batch, GemmStride row, GemmStride leading) {
  const GemmStride size = sizeof(T);
  return {reinterpret_cast<std::uintptr_t>(array), span * size, row * size,
          batch == 1 ? leading * size : 0};
}
/// False for columns of one buffer that lie side by side.
inline bool overlap(const GemmArea& c, const GemmArea& other) {
  if (c.span <= 0 || other.span <= 0) return false;
  const auto from = static_cast<GemmStride>(other.begin - c.begin);
  if (from >= c.span || -from >= other.span) return false;
  if (c.pitch <= 0 || c.pitch != other.pitch) return true;
  const GemmStride column = (from % c.pitch + c.pitch) % c.pitch;
  return column < c.row || column + other.row > c.pitch;
}

/// An epilogue's parameter as an argument of a launch, and its data while kernels are tuned.
template <class P>
struct GemmParameter {
  static_assert(std::is_arithmetic_v<P>,
                "an epilogue's parameter is a number, or one of PerRow, PerColumn, PerBatch, "
                "PerElement, EveryElement and Single");
  using Argument = P;
  /// Floating-point numbers ascend, as limits do; integers are positive, so that they divide.
  static void add(Workload& w, const GemmShape<true>&, int index) {
    if constexpr (std::is_integral_v<P>)
      w.scalar(static_cast<P>(1 + index));
    else
      w.scalar(static_cast<P>(index == 0 ? -0.5 : 0.5 * index));
  }
};
/// `count` is a member of GemmShape<true>.
template <class T, auto count>
struct GemmArray {
  using Argument = const T*;
  static void add(Workload& w, const GemmShape<true>& p, int) {
    w.input<T>(static_cast<std::size_t>(std::invoke(count, p)));
  }
  static GemmArea area(const T* array, const GemmShape<true>& p) {
    return gemm_area(array, std::invoke(count, p), 0, 0, 0);
  }
};
template <class T>
struct GemmParameter<epilogue::PerRow<T>> : GemmArray<T, &GemmShape<true>::m> {};
template <class T>
struct GemmParameter<epilogue::PerColumn<T>> : GemmArray<T, &GemmShape<true>::n> {};
template <class T>
struct GemmParameter<epilogue::PerBatch<T>> : GemmArray<T, &GemmShape<true>::batch> {};
/// A scale, as a rule: near 1, so that results are neither all large nor all small, and not more,
/// so that errors are not.
template <class T>
struct GemmParameter<epilogue::Single<T>> {
  using Argument = const T*;
  static void add(Workload& w, const GemmShape<true>&, int) {
    w.input<T>(1, Uniform{.low = 0.5, .high = 1});
  }
  static GemmArea area(const T* array, const GemmShape<true>&) {
    return gemm_area(array, 1, 0, 0, 0);
  }
};
template <class T>
struct GemmParameter<epilogue::PerElement<T>> : GemmArray<T, &GemmShape<true>::c_span> {
  static GemmArea area(const T* array, const GemmShape<true>& p) {
    return gemm_area(array, p.c_span(), p.batch, p.n, p.ldc);
  }
};
template <class T>
struct GemmParameter<epilogue::EveryElement<T>> : GemmParameter<epilogue::PerElement<T>> {};
/// Scales of blocks: as different as those of real activations and weights may be, so that one that
/// belongs to another block is noticed.
struct GemmBlocks {
  using Argument = const float*;
  static void add_scales(Workload& w, int rows, int columns, long long leading) {
    const auto size = [](auto count) { return static_cast<std::size_t>(count); };
    w.input<float>(Rows{size(rows), size(columns), size(leading)}, Uniform{.low = 0.02, .high = 1});
  }
};
template <>
struct GemmParameter<epilogue::RowBlocks> : GemmBlocks {
  static void add(Workload& w, const GemmShape<true>& p, int) {
    add_scales(w, rows(p), p.m, scale_leading(p.m));
  }
  static GemmArea area(const float* array, const GemmShape<true>& p) {
    return gemm_area(array, rows(p) * scale_leading(p.m), 0, 0, 0);
  }
  /// Rows of scales, in all batches that have an A of their own.
  static int rows(const GemmShape<true>& p) {
    return p.k / kScaleBlock * (p.stride_a != 0 ? p.batch : 1);
  }
};
template <>
struct GemmParameter<epilogue::WeightBlocks> : GemmBlocks {
  static void add(Workload& w, const GemmShape<true>& p, int) {
    add_scales(w, rows(p), p.k / kScaleBlock, p.k / kScaleBlock);
  }
  static GemmArea area(const float* array, const GemmShape<true>& p) {
    return gemm_area(array, GemmStride{rows(p)} * (p.k / kScaleBlock), 0, 0, 0);
  }
  /// Rows of scales, in all batches that have a B of their own.
  static int rows(const GemmShape<true>& p) {
    return scale_blocks(p.n) * (p.stride_b != 0 ? p.batch : 1);
  }
};
template <class P>
using GemmArgument = typename GemmParameter<P>::Argument;

/// The first of an epilogue's parameters that kernels with tensor maps may fetch, counted on from
/// `index`.
template <class Out, class... P>
constexpr std::optional<std::size_t> fetched_parameter(std::size_t index = 0) {
  for (const bool fetched : {std::is_same_v<P, epilogue::EveryElement<Out>>..., false}) {
    if (fetched && sizeof(Out) == 2) return index;
    ++index;
  }
  return {};
}
/// The types of its arguments as entries spell them.
template <class Out, class... P>
std::vector<std::string> argument_types() {
  std::vector<std::string> types{device_name<GemmArgument<P>>()...};
  if (const auto fetched = fetched_parameter<Out, P...>())
    types[*fetched] = "kiln::templates::Fetched<" + device_name<Out>() + ">";
  return types;
}

/// @throws UserError when a parameter is an array that C may not overlap, but does
template <class P, class T>
void check_overlap(const T* c, const GemmArea& area, const GemmShape<true>& p,
                   GemmArgument<P> argument) {
  if constexpr (std::is_pointer_v<GemmArgument<P>>) {
    constexpr bool kLiesAsC =
        std::is_same_v<P, epilogue::PerElement<T>> || std::is_same_v<P, epilogue::EveryElement<T>>;
    const bool is_c = kLiesAsC && static_cast<const void*>(argument) == static_cast<const void*>(c);
    if (!is_c && overlap(area, GemmParameter<P>::area(argument, p)))
      throw UserError("gemm: C overlaps an array of the epilogue");
  }
}

}  // namespace kiln::templates::gemm_detail
