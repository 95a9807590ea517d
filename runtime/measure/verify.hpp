// Is an output what the reference says it is?
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "kiln/definition.hpp"
#include "kiln/workload.hpp"

namespace kiln::runtime {

/// How far `got` is from `want`.
struct Comparison {
  /// Largest |got - want| / (absolute + relative * |want|); infinite where exactly one is NaN, or
  /// where infinities differ. At most 1 passes.
  double max_error = 0;
  std::size_t worst = 0;       ///< index of `max_error`: of the element, or of the byte
  std::size_t mismatches = 0;  ///< elements (or bytes) over 1
  std::size_t permitted = 0;   ///< as many may be, by Tolerance::mismatches
  /// ||got - want|| / ||want|| of floats; infinite where ||want|| alone is 0. What is not finite on
  /// both sides alike is left out.
  double norm_error = 0;
  double norm_permitted = 0;  ///< by Tolerance::norm; infinite: any

  bool passes() const noexcept { return mismatches <= permitted && norm_error <= norm_permitted; }
};

/// What is known of a launch's results.
struct Verdict {
  bool right = true;
  double max_error = 0;  ///< as Comparison::max_error
  std::string why;
  double norm_error = 0;  ///< as Comparison::norm_error, of the output where it is largest
};

/// Both spans hold `argument.count` elements of `argument.type`. Integers may differ by the
/// absolute tolerance only; elements of other types than numbers must be equal byte by byte. What
/// lies between rows is not compared.
Comparison compare(const Workload::Argument& argument, std::span<const std::byte> got,
                   std::span<const std::byte> want, const Tolerance& tolerance);

/// What norms say of outputs that a kernel's `check` has found right: each argument's bytes are
/// what the reference has, `got` what a launch left. Tolerance::norm 0: they are known, and not
/// judged.
Verdict judge_norms(std::span<const Workload::Argument> arguments, std::span<void* const> got,
                    const Tolerance& tolerance);

/// The byte of which an array full of it is wrong in as many elements as possible, hopefully all.
std::byte most_wrong_byte(const Workload::Argument& argument, std::span<const std::byte> want,
                          const Tolerance& tolerance);

/// `element 17 of argument 0 is 1.5, expected 2 (3 of 1024 differ)`; where some may, `(17 of 1000
/// outside the tolerance, 10 allowed)`; where each may be right, `all elements together differ by
/// 0.02 of their norm, 0.01 allowed`.
std::string describe(const Comparison& comparison, std::size_t argument_index,
                     const Workload::Argument& argument, std::span<const std::byte> got,
                     std::span<const std::byte> want);

/// `wrote element 7 of argument 1, an input: 5 instead of 0.25`. Spans of one element (or byte).
std::string describe_changed_input(std::size_t index, std::size_t argument_index,
                                   const Workload::Argument& argument,
                                   std::span<const std::byte> got, std::span<const std::byte> want);

/// `wrote outside argument 0, after its 1000 elements: element 1000`. @param offset in bytes from
/// the array's start, negative or beyond its end
std::string describe_outside(std::ptrdiff_t offset, std::size_t argument_index,
                             const Workload::Argument& argument);

/// @throws UserError when the workload's arguments do not fit the kernel's signature.
void check_workload(const KernelDefinition& kernel, const Workload& workload);

}  // namespace kiln::runtime
