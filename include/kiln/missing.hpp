// A binary that a program needed and could not find or compile, as data, so that a program can ask
// before a launch throws.
//
//   if (auto missing = handle.prepare(problem)) std::puts(missing->explain().c_str());
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/key.hpp"

namespace kiln {

/// One field in which the nearest entry differs from what was wanted.
struct FieldDifference {
  std::string field;
  std::string wanted, found;  ///< empty: that side has no such field
};

/// A binary that no store, root or bundle has.
struct Missing {
  std::string instance;        ///< `gemm<float>{block_m=128,...}`
  Key wanted;                  ///< its fields are those known where there is no compiler
  std::optional<Key> closest;  ///< of this kernel's binaries, the one with the fewest differences
  std::vector<FieldDifference> differences;  ///< between the two
  std::string why;                           ///< why it was not compiled instead

  /// Several lines: what is missing, the nearest there is, and how the two differ.
  std::string explain() const;
};

/// The difference of two keys, in the order of `wanted`'s fields.
std::vector<FieldDifference> differences(const Key& wanted, const Key& found);

/// Thrown by a launch in the modes lookup_only and frozen when there is nothing that it can launch.
class MissingError : public EnvironmentError {
 public:
  explicit MissingError(Missing missing)
      : EnvironmentError(missing.explain()), missing_(std::move(missing)) {}

  const Missing& missing() const noexcept { return missing_; }

 private:
  Missing missing_;
};

}  // namespace kiln
