#include "kiln/registry.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/build/has_fields.hpp"

namespace kiln {

namespace {

template <class Range, class Name>
std::string join(const Range& range, Name name) {
  std::string text;
  for (const auto& item : range) text += (text.empty() ? "" : ", ") + name(item);
  return text;
}

template <class Registered>
void add_to(std::vector<Registered>& all, Registered one, const char* kind) {
  if (one.name.empty() || !one.make || one.types.empty())
    throw UserError(
        detail::format("registry: {} '{}' lacks a name, types or `make`", kind, one.name));
  for (const Registered& known : all)
    if (known.name == one.name)
      throw UserError(detail::format("registry: {} '{}' is already registered", kind, one.name));
  all.push_back(std::move(one));
}

template <class Registered>
auto make_of(const std::vector<Registered>& all, std::string_view name, std::string_view type,
             const char* kind) {
  const auto found = std::ranges::find(all, name, &Registered::name);
  if (found == all.end())
    throw UserError(detail::format("unknown {} '{}' (known: {})", kind, name,
                                   join(all, [](const auto& one) { return one.name; })));
  if (type.empty()) type = found->types.front();
  if (std::ranges::find(found->types, type) == found->types.end())
    throw UserError(detail::format("{} {} has no types '{}' (known: {})", kind, name, type,
                                   join(found->types, [](const auto& t) { return t; })));
  return found->make(type);
}

/// The one that the name and types of a definition belong to; of several the one that `fits`, else
/// the first.
template <class Registered, class Fits>
auto find_of(const std::vector<Registered>& all, const std::string& name,
             const std::vector<std::string>& types, const char* kind, const Fits& fits) {
  std::string known;
  std::optional<decltype(all.front().make(""))> found;
  for (const Registered& family : all)
    for (const std::string& type : family.types) {
      auto made = family.make(type);
      known += detail::format("{}{}<{}>", known.empty() ? "" : ", ", made.name,
                              join(made.types, [](const auto& t) { return t; }));
      if (made.name != name || made.types != types) continue;
      if (fits(made)) return made;
      if (!found) found = std::move(made);
    }
  if (!found)
    throw UserError(
        detail::format("there is no such {} with these types (known: {})", kind, known));
  return *std::move(found);
}

}  // namespace

Registry& Registry::add(RegisteredKernel kernel) {
  add_to(kernels_, std::move(kernel), "kernel");
  return *this;
}

KernelDefinition Registry::make(std::string_view name, std::string_view type) const {
  return make_of(kernels_, name, type, "kernel");
}

KernelDefinition Registry::find(const std::string& name,
                                const std::vector<std::string>& types) const {
  return find_of(kernels_, name, types, "kernel", [](const auto&) { return true; });
}

Registry& Registry::add_choice(RegisteredChoice choice) {
  add_to(choices_, std::move(choice), "choice");
  return *this;
}

detail::ChoiceDescription Registry::make_choice(std::string_view name,
                                                std::string_view type) const {
  return make_of(choices_, name, type, "choice");
}

detail::ChoiceDescription Registry::find_choice(
    const std::string& name, const std::vector<std::string>& types,
    const std::map<std::string, std::int64_t>& problem) const {
  return find_of(choices_, name, types, "choice", [&](const detail::ChoiceDescription& choice) {
    return runtime::has_fields(choice.operation, problem);
  });
}

}  // namespace kiln
