// Values of a config or of a problem with the names of their fields, for kernels described at run
// time.
//
//   k.launch = k.by_name([](auto config, auto problem) {
//     return kiln::Launch{{blocks(problem["n"], config["block"])},
//                                 {unsigned(config["block"])}};
//   });
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kiln/version.hpp"

namespace kiln {

/// A view: valid as long as what it was made of.
class Named {
 public:
  Named(std::span<const std::string> names, std::span<const std::int64_t> values) noexcept
      : names_(names), values_(values) {}

  /// @throws UserError that says which names there are.
  std::int64_t operator[](std::string_view name) const {
    for (std::size_t i = 0; i < names_.size() && i < values_.size(); ++i)
      if (names_[i] == name) return values_[i];
    refuse(name);
  }
  /// In field order. @pre index < values().size()
  std::int64_t operator[](std::size_t index) const { return values_[index]; }

  std::span<const std::int64_t> values() const noexcept { return values_; }

 private:
  [[noreturn]] void refuse(std::string_view name) const;

  std::span<const std::string> names_;
  std::span<const std::int64_t> values_;
};

}  // namespace kiln
