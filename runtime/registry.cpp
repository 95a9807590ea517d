#include "kiln/registry.hpp"

#include <algorithm>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

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

}  // namespace

Registry& Registry::add(RegisteredKernel kernel) {
  add_to(kernels_, std::move(kernel), "kernel");
  return *this;
}

KernelDefinition Registry::make(std::string_view name, std::string_view type) const {
  return make_of(kernels_, name, type, "kernel");
}

Registry& Registry::add_choice(RegisteredChoice choice) {
  add_to(choices_, std::move(choice), "choice");
  return *this;
}

detail::ChoiceDescription Registry::make_choice(std::string_view name,
                                                std::string_view type) const {
  return make_of(choices_, name, type, "choice");
}

}  // namespace kiln
