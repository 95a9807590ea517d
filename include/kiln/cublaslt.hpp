// cuBLASLt as an alternative of a choice (choice.hpp): which product of matrices a problem is.
//
// libcublasLt is opened when a choice first asks for it. Where it is absent or too old, or has no
// algorithm for a problem, the alternative takes no part, and says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "kiln/version.hpp"

namespace kiln {

/// C = op(A) * op(B), all row-major: C is [m][n]; op(A) is m x k and op(B) k x n. Leading
/// dimensions are elements from one row to the next, strides elements from one batch to the next; a
/// stride of 0 gives all batches the same A or B.
struct MatrixProduct {
  std::int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false;  ///< A is stored as [k][m], else as [m][k]
  bool b_transposed = true;   ///< B is stored as [n][k] (a linear layer's weights), else as [k][n]
  std::int64_t ldc = 0, lda = 0, ldb = 0;
  std::int64_t batch = 1;
  std::int64_t stride_c = 0, stride_a = 0, stride_b = 0;
};

/// Products are summed in float, those of float operands without TF32; parts of a split sum are
/// float, too. C, A and B must be aligned to 16 bytes: a launch with other pointers is a UserError.
///
/// 8-bit floats are multiplied on GPUs of compute capability 8.9 or above, with A stored as [m][k]
/// and B as [n][k], where k, the leading dimensions, the strides and C's n are multiples of 16
/// bytes; not e5m2 by e5m2. For other problems the alternative takes no part.
///
/// With scales C is scale_a[0] * scale_b[0] * op(A) * op(B).
struct CublasltGemm {
  enum class Type { float32, float16, bfloat16, float8_e4m3, float8_e5m2 };

  Type type = Type::float32;  ///< of A, and of B and C unless these have a type of their own
  /// The product of a problem's values, in field order. Pure, callable from any thread.
  std::function<MatrixProduct(std::span<const std::int64_t> problem)> product{};
  /// Places of the pointers in the signature.
  std::size_t c = 0, a = 1, b = 2;
  int top = 8;  ///< answers of the library's heuristic that are tried; the first is its best guess
  std::size_t workspace = std::size_t{32} << 20;  ///< the most bytes that an algorithm may use
  std::optional<Type> b_type{}, c_type{};  ///< c_type cannot be of 8 bits, so name it with them
  /// Places of pointers to one float each in device memory, of 8-bit operands; empty: 1. Every
  /// launch has its own.
  std::optional<std::size_t> scale_a{}, scale_b{};
  /// Of 8-bit operands, on Ada and Hopper: the tensor cores' own sums, which are faster and less
  /// exact the larger k is. Results differ from those without, so alternatives that differ in this
  /// must not have the same numerics class.
  bool fast_accumulation = false;
};

}  // namespace kiln
