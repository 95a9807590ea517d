// Membership in a list of configs as a row of constraints, one more parameter in each: the
// constraints on the first few parameters tell a search in a huge space where listed configs are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/recorded/space_data.hpp"

namespace kiln::runtime {

/// Immutable.
class ListedPrefixes {
 public:
  explicit ListedPrefixes(const RecordedSpace::Data& data);

  /// Rising numbers of parameters for which `listed` excludes more than for the number before. The
  /// number of all parameters is not among them.
  const std::vector<std::size_t>& lengths() const noexcept { return lengths_; }
  /// Whether some listed config begins with these values: certain if false, as good as certain if
  /// true. `config` has at least lengths()[which] values.
  bool listed(std::size_t which, std::span<const std::int64_t> config) const;

 private:
  std::vector<std::size_t> lengths_;
  std::vector<std::vector<std::uint64_t>> hashes_;  ///< by length, rising
};

}  // namespace kiln::runtime
