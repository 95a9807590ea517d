// How the bodies of a GEMM finish and store a sum: kiln/epilogue.hpp with its arguments, and where
// an element of C lies. An Epilogue here is called with the sum and the place alone.
#pragma once

#include "../../device/elements.cuh"
#include "gemm_arguments.cuh"
#include "gemm_problem.hpp"
#include "kiln/block_scales.hpp"
#include "kiln/epilogue.hpp"

namespace kiln::templates {

/// The sum as it is: for kernels without an epilogue.
struct StoreSum {
  static constexpr bool kNothing = true, kRepeatable = true;
  __device__ __forceinline__ float operator()(float sum, const epilogue::Place&) const {
    return sum;
  }
};

template <class Epilogue>
inline constexpr bool kStoresSum = false;
template <>
inline constexpr bool kStoresSum<epilogue::Nothing> = true;

/// Several blocks may compute an element, and store the same value, unless what they read may be C.
template <class P>
inline constexpr bool kMayBeC = false;
template <class T>
inline constexpr bool kMayBeC<epilogue::PerElement<T>> = true;
template <class T>
inline constexpr bool kMayBeC<epilogue::EveryElement<T>> = true;
template <class P>
inline constexpr bool kRepeatable = false;
template <class... P>
inline constexpr bool kRepeatable<epilogue::detail::Parameters<P...>> = !(kMayBeC<P> || ...);

template <class Call>
struct RepeatableEpilogue : Call {
  static constexpr bool kRepeatable = true;
};

/// The arguments of epilogue::BlockScales.
struct BlockScaleArrays {
  const float* a;
  const float* b;
  int rows = 0;  ///< of C that A's scales are for; 0: all
};
template <class Call>
struct BlockScaledEpilogue : Call {
  BlockScaleArrays scales;
};
template <class Call, class... Rest>
__device__ __forceinline__ BlockScaledEpilogue<Call> with_block_scales(const Call& call,
                                                                       const float* a,
                                                                       const float* b, Rest...) {
  return {call, {a, b}};
}

/// The scales of one batch. Groups (gemm_grouped.hpp) are batches, each with a B of its own, and
/// with an A of its own unless their rows follow each other.
template <bool batched>
__device__ __forceinline__ BlockScaleArrays scales_of(BlockScaleArrays scales,
                                                      const GemmShape<batched>& shape, int batch) {
  if (scales.rows == 0) scales.rows = shape.m;
  if constexpr (batched) {
    const long long blocks = scale_blocks(shape.k);
    if (shape.stride_a != 0) scales.a += batch * blocks * scale_leading(scales.rows);
    if (shape.stride_b != 0) scales.b += batch * blocks * scale_blocks(shape.n);
  }
  return scales;
}

/// The block scales of an epilogue, or of what finishes the sums of a pair.
template <class Epilogue>
__device__ __forceinline__ const BlockScaleArrays& block_scales_in(const Epilogue& epilogue) {
  if constexpr (requires { epilogue.finish; })
    return epilogue.finish.scales;
  else
    return epilogue.scales;
}

/// An epilogue of kiln/epilogue.hpp that has its arguments.
template <class Epilogue, class... P>
__device__ __forceinline__ auto with_arguments(P... parameters) {
  using Parameters = epilogue::detail::parameters_of<Epilogue>;
  const auto call = fetching(call_with<Epilogue>(Parameters{}, parameters...), parameters...);
  const RepeatableEpilogue<decltype(call)> repeatable{call};
  constexpr bool kScales = epilogue::detail::kScalesBlocks<Parameters>;
  if constexpr (kStoresSum<Epilogue>)
    return StoreSum{};
  else if constexpr (kScales && kRepeatable<Parameters>)
    return with_block_scales(repeatable, parameters...);
  else if constexpr (kScales)
    return with_block_scales(call, parameters...);
  else if constexpr (kRepeatable<Parameters>)
    return repeatable;
  else
    return call;
}

/// The sums of which an epilogue with kGated (gemm_pairs.cuh) makes one element of C.
struct GatedSum {
  float gate, up;
};
template <class Epilogue>
inline constexpr bool kGated = requires { Epilogue::kGated; };
/// An epilogue that stores 8-bit floats (gemm_gated_fp8.cuh), with scales of blocks or without.
template <class Epilogue>
inline constexpr bool kQuantizes = requires { Epilogue::kQuantizes; };
template <class Epilogue>
inline constexpr bool kScalesResults = requires { Epilogue::kScalesBlocks; };

/// The epilogue when sums are stored: it may read memory once for all of them.
template <class Epilogue>
__device__ __forceinline__ decltype(auto) ready(const Epilogue& epilogue) {
  if constexpr (requires { epilogue.ready(); })
    return epilogue.ready();
  else
    return (epilogue);
}

/// C as a block sees it.
template <bool batched, class Epilogue>
struct GemmOutput {
  static constexpr bool kPairs = kGated<Epilogue>, kQuantized = kQuantizes<Epilogue>;

  const GemmShape<batched>& shape;
  const Epilogue& epilogue;
  int batch;

  __device__ __forceinline__ long long element(long long row, long long column) const {
    const long long in_batch = row * shape.ldc + column;
    if constexpr (batched) return batch * shape.stride_c + in_batch;
    return in_batch;
  }
  /// What is stored for a sum, or a GatedSum, which lies inside of C. `fetched`: the element of the
  /// array that has been fetched, if there is one.
  template <class Sum>
  __device__ __forceinline__ float finished(const Sum& sum, long long row, long long column,
                                            float fetched = 0) const {
    if constexpr (requires { Epilogue::kNothing; })
      return sum;
    else if constexpr (kFetches<Epilogue>)
      return epilogue(
          sum, {static_cast<int>(row), static_cast<int>(column), batch, element(row, column)},
          fetched);
    else
      return epilogue(
          sum, {static_cast<int>(row), static_cast<int>(column), batch, element(row, column)});
  }
  /// The same at any place; outside of C, what its last row or column would get.
  template <class Sum>
  __device__ __forceinline__ float finished_near(const Sum& sum, int row, int column) const {
    return finished(sum, min(row, shape.m - 1), min(column, shape.n - 1));
  }
  /// True when two neighbours from an even column on may be stored by one access.
  template <class T>
  __device__ __forceinline__ bool pairs(const T* c) const {
    bool even = shape.ldc % 2 == 0;
    if constexpr (batched) even = even && shape.stride_c % 2 == 0;
    return even && aligned(2 * sizeof(T), c);
  }
  /// Nothing for places outside of C.
  template <class T>
  __device__ __forceinline__ void store(T* c, float sum, long long row, long long column) const {
    if (row < shape.m && column < shape.n)
      c[element(row, column)] = from_float<T>(finished(sum, row, column));
  }
  /// The same for two sums, at a column of C, which has ldc columns.
  template <class T>
  __device__ __forceinline__ void store_pair(T* c, const GatedSum& sum, long long row,
                                             long long column) const {
    if (row >= shape.m || column >= shape.ldc) return;
    const float result = finished(sum, row, column);
    if constexpr (kQuantizes<Epilogue>)
      epilogue.store(c + element(row, column), result);
    else
      c[element(row, column)] = from_float<T>(result);
  }
};

template <bool batched, class Epilogue>
__device__ __forceinline__ GemmOutput<batched, Epilogue> output_of(const GemmShape<batched>& shape,
                                                                   const Epilogue& epilogue,
                                                                   int batch) {
  return {shape, epilogue, batch};
}

}  // namespace kiln::templates
