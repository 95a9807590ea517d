// Kernels by name, for the `kiln` command and for programs that choose at run time.
//
//   kiln::Registry registry;
//   registry.add({"scale", "x *= a", {"f32"},
//                 [](std::string_view) { return scale.definition(); }});
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/definition.hpp"
#include "kiln/detail/choice_core.hpp"

namespace kiln {

/// A kernel family: one definition per element type.
struct RegisteredKernel {
  std::string name;
  std::string summary;             ///< its equation, in one line
  std::vector<std::string> types;  ///< e.g. f32, f16, bf16; the first is the default
  std::function<KernelDefinition(std::string_view type)> make;
};

/// A choice by name, as RegisteredKernel. Its switches and records have the choice's own name.
struct RegisteredChoice {
  std::string name;
  std::string summary;
  std::vector<std::string> types;
  std::function<detail::ChoiceDescription(std::string_view type)> make;
};

/// Not thread-safe while it is being filled.
class Registry {
 public:
  /// @throws UserError on a name that is already registered, or a kernel without types.
  Registry& add(RegisteredKernel kernel);
  const std::vector<RegisteredKernel>& kernels() const noexcept { return kernels_; }
  /// @throws UserError listing the known names or types. An empty type means the first.
  KernelDefinition make(std::string_view name, std::string_view type = {}) const;
  /// The one with a definition's name and types, as manifests and records have them.
  /// @throws UserError listing those that there are
  KernelDefinition find(const std::string& name, const std::vector<std::string>& types) const;

  /// The same for choices, which have names of their own: a kernel may have the same.
  Registry& add_choice(RegisteredChoice choice);
  const std::vector<RegisteredChoice>& choices() const noexcept { return choices_; }
  detail::ChoiceDescription make_choice(std::string_view name, std::string_view type = {}) const;
  /// The one with a description's name and types and, where several have these, with the fields of
  /// this problem.
  detail::ChoiceDescription find_choice(const std::string& name,
                                        const std::vector<std::string>& types,
                                        const std::map<std::string, std::int64_t>& problem) const;

 private:
  std::vector<RegisteredKernel> kernels_;
  std::vector<RegisteredChoice> choices_;
};

/// The kernels and choices shipped with Kiln: `kiln list` and `kiln list --choices` name them.
Registry shipped_kernels();

}  // namespace kiln
