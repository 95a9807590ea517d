// What a GEMM multiplies and stores, by its type T: float, half or bfloat16 alike, or Fp8<Result>,
// which multiplies 8-bit floats.
#pragma once

#if defined(KILN_DEVICE_PASS)
struct __nv_fp8_e4m3;  // cuda_fp8.h takes long to compile
#else
#include <string>

#include "kiln/types.hpp"
#endif

namespace kiln::templates {

#if defined(KILN_DEVICE_PASS)
using Fp8Operand = __nv_fp8_e4m3;
#else
using Fp8Operand = float8_e4m3;
#endif

/// How products of 8-bit floats are summed on Hopper's tensor cores, whose own sums have about 14
/// bits (DeepSeek-V3 technical report, 3.3.2). exact: those of each 128 k are added in float. fast:
/// by the tensor cores alone. scaled: as exact, each 128 k times the scales of their blocks.
enum class Fp8Sums { exact, fast, scaled };

/// The type of a GEMM of e4m3 operands, op nt, with a result of another type: bfloat16.
template <class Result, Fp8Sums sums = Fp8Sums::exact>
struct Fp8 {};

/// What the tensor cores are given. fp8_exact: whose sums are added in float every 128 k;
/// fp8_scaled: with a factor.
enum class GemmOperands { two_bytes, fp8, fp8_exact, fp8_scaled };

template <class T>
struct GemmTypes {
  using Operand = T;  ///< of A and B
  using Result = T;   ///< of C
  static constexpr bool kFp8 = false;
  static constexpr GemmOperands kOperands = GemmOperands::two_bytes;
};
template <class R, Fp8Sums sums>
struct GemmTypes<Fp8<R, sums>> {
  using Operand = Fp8Operand;
  using Result = R;
  static constexpr bool kFp8 = true;
  static constexpr GemmOperands kOperands = sums == Fp8Sums::exact    ? GemmOperands::fp8_exact
                                            : sums == Fp8Sums::scaled ? GemmOperands::fp8_scaled
                                                                      : GemmOperands::fp8;
};
template <class T>
inline constexpr bool kBlockScaled = GemmTypes<T>::kOperands == GemmOperands::fp8_scaled;
template <class T>
using GemmOperand = typename GemmTypes<T>::Operand;
template <class T>
using GemmResult = typename GemmTypes<T>::Result;

}  // namespace kiln::templates

#if !defined(KILN_DEVICE_PASS)
template <class Result, kiln::templates::Fp8Sums sums>
struct kiln::DeviceName<kiln::templates::Fp8<Result, sums>> {
  static inline const std::string value =
      "kiln::templates::Fp8<" + device_name<Result>() +
      (sums == kiln::templates::Fp8Sums::exact    ? ">"
       : sums == kiln::templates::Fp8Sums::scaled ? ", kiln::templates::Fp8Sums::scaled>"
                                                  : ", kiln::templates::Fp8Sums::fast>");
};
#endif
