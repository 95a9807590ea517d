// What happens to a sum of a GEMM before it is rounded and stored: a struct with a call operator,
// part of the kernel's type. This header is read by the host compiler and by kernel compilers, and
// so is a header with an epilogue of your own:
//
//   struct LeakyRelu {
//     float operator()(float sum, const kiln::epilogue::Place&, float slope) const {
//       return sum < 0 ? slope * sum : sum;
//     }
//   };
//
// The operator's parameters behind the place are arguments of the launch, behind the GEMM's own:
// scalars by value, and arrays as PerRow, PerColumn, PerBatch, PerElement, EveryElement or Single,
// whose arguments are plain pointers. The same struct computes the reference on the host. It holds
// nothing, and its operator is neither a template nor overloaded. A kernel may call it more than
// once for a place.
//
//   using kiln::epilogue::Bias, kiln::epilogue::Chain, kiln::epilogue::Gelu;
//   using BiasGelu = Chain<Bias<kiln::bfloat16>, Gelu>;  // gelu(sum + bias[column])
#pragma once

#if defined(KILN_DEVICE_PASS)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace kiln {
using float16 = __half;
using bfloat16 = __nv_bfloat16;
}  // namespace kiln
#else
#include "kiln/types.hpp"
#endif

#include "kiln/detail/activation_math.hpp"

namespace kiln::epilogue {

/// Where an element of C is.
struct Place {
  int row, column, batch;
  long long element;  ///< in the array: batch * stride + row * leading dimension + column
};

/// An array of one value per row of C, the same for all batches.
template <class T>
struct PerRow {
  PerRow(const T* array) : values(array) {}
  float operator[](const Place& at) const { return static_cast<float>(values[at.row]); }
  const T* values;
};
/// One value per column of C, the same for all batches.
template <class T>
struct PerColumn {
  PerColumn(const T* array) : values(array) {}
  float operator[](const Place& at) const { return static_cast<float>(values[at.column]); }
  const T* values;
};
/// One value per batch.
template <class T>
struct PerBatch {
  PerBatch(const T* array) : values(array) {}
  float operator[](const Place& at) const { return static_cast<float>(values[at.batch]); }
  const T* values;
};
/// One value in memory, for all of C.
template <class T>
struct Single {
  Single(const T* one) : value(one) {}
  operator float() const { return static_cast<float>(*value); }
  const T* value;
};
/// An array that lies as C does, with its leading dimension and stride between batches. One of C's
/// type may be C itself.
template <class T>
struct PerElement {
  PerElement(const T* array) : values(array) {}
  float operator[](const Place& at) const { return static_cast<float>(values[at.element]); }
  const T* values;
};
/// The same for an array of which each call reads the element at its own place. So a kernel may have
/// fetched that before it calls; where it fetches by tensor maps, the array is aligned as C is.
template <class T>
struct EveryElement {
  EveryElement(const T* array) : values(array) {}
  /// For a call whose element has been fetched.
  static EveryElement fetched(float element) {
    EveryElement own(nullptr);
    own.is_fetched = true;
    own.element = element;
    return own;
  }
  float operator[](const Place& at) const {
    return is_fetched ? element : static_cast<float>(values[at.element]);
  }
  const T* values;
  bool is_fetched = false;
  float element = 0;
};
/// Scales of blocks, the parameters of BlockScales.
struct RowBlocks {
  RowBlocks(const float* array) : values(array) {}
  const float* values;
};
struct WeightBlocks {
  WeightBlocks(const float* array) : values(array) {}
  const float* values;
};

namespace detail {
template <class... P>
struct Parameters {};

template <class Call>
struct ParametersOf {
  static_assert(!sizeof(Call),
                "an epilogue is a struct with `float operator()(float sum, const "
                "kiln::epilogue::Place&, parameters...) const`");
};
template <class E, class... P>
struct ParametersOf<float (E::*)(float, const Place&, P...) const> {
  using Type = Parameters<P...>;
};
template <class E, class... P>
struct ParametersOf<float (E::*)(float, const Place&, P...) const noexcept> {
  using Type = Parameters<P...>;
};
template <class E>
using parameters_of = typename ParametersOf<decltype(&E::operator())>::Type;

/// Whether an epilogue with these parameters begins with BlockScales.
template <class P>
inline constexpr bool kScalesBlocks = false;
template <class... P>
inline constexpr bool kScalesBlocks<Parameters<RowBlocks, WeightBlocks, P...>> = true;

template <class First, class P, class Second, class Q>
struct Then;
template <class First, class... P, class Second, class... Q>
struct Then<First, Parameters<P...>, Second, Parameters<Q...>> {
  float operator()(float sum, const Place& at, P... first, Q... second) const {
    return Second{}(First{}(sum, at, first...), at, second...);
  }
};
}  // namespace detail

/// One after the other, from the left; the arguments are those of the first, then of the next.
template <class First, class... Rest>
struct Chain : detail::Then<First, detail::parameters_of<First>, Chain<Rest...>,
                            detail::parameters_of<Chain<Rest...>>> {};
template <class Last>
struct Chain<Last> : Last {};

/// The sum as it is.
struct Nothing {
  float operator()(float sum, const Place&) const { return sum; }
};
/// Adds a value per column, as a linear layer's bias is.
template <class T>
struct Bias {
  float operator()(float sum, const Place& at, PerColumn<T> bias) const { return sum + bias[at]; }
};
/// Adds a value per row.
template <class T>
struct RowBias {
  float operator()(float sum, const Place& at, PerRow<T> bias) const { return sum + bias[at]; }
};
struct Scale {
  float operator()(float sum, const Place&, float factor) const { return sum * factor; }
};
/// Multiplies by what A's and B's elements were divided by when they were quantized: one scale for
/// each of the two arrays.
struct TensorScales {
  float operator()(float sum, const Place&, Single<float> a, Single<float> b) const {
    return sum * (a * b);
  }
};
/// The same with a scale for each row of A, and for each of B's that is a column of C.
struct RowScales {
  float operator()(float sum, const Place& at, PerRow<float> a, PerColumn<float> b) const {
    return sum * (a[at] * b[at]);
  }
};
/// The same with a scale for each 128 k of a row of A, and for each 128 x 128 of B, which lie as
/// kiln/block_scales.hpp says. Sums of Fp8Sums::scaled contain these factors already, and no other
/// sums can have them. So this leaves the sum as it is, and must be the first of an epilogue.
struct BlockScales {
  float operator()(float sum, const Place&, RowBlocks, WeightBlocks) const { return sum; }
};
/// Adds an array that lies as C does.
template <class T>
struct Residual {
  float operator()(float sum, const Place& at, EveryElement<T> residual) const {
    return sum + residual[at];
  }
};
/// The same times a factor, BLAS's beta: with 0 the array is not read.
template <class T>
struct ScaledResidual {
  float operator()(float sum, const Place& at, PerElement<T> residual, float factor) const {
    return factor == 0 ? sum : sum + factor * residual[at];
  }
};
struct Relu {
  float operator()(float sum, const Place&) const { return sum < 0 ? 0 : sum; }
};
/// x * Phi(x), with the normal distribution's Phi, to a few units in the last place of x / 2.
struct Gelu {
  float operator()(float x, const Place&) const { return detail::gelu(x); }
};
/// x * sigmoid(x). On a GPU it is 0 where x is below -88.7.
struct Silu {
  float operator()(float x, const Place&) const { return detail::over_one_plus_exp(x, -x); }
};
/// The approximation of Gelu by tanh, as x * sigmoid(2 u) with tanh's argument u.
struct GeluTanh {
  float operator()(float x, const Place&) const {
    return detail::over_one_plus_exp(x, detail::gelu_tanh_exponent(x));
  }
};
struct Clamp {
  float operator()(float sum, const Place&, float low, float high) const {
    return sum < low ? low : sum > high ? high : sum;
  }
};

}  // namespace kiln::epilogue
