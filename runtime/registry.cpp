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

}  // namespace

Registry& Registry::add(RegisteredKernel kernel) {
  if (kernel.name.empty() || !kernel.make || kernel.types.empty())
    throw UserError(
        detail::format("registry: kernel '{}' lacks a name, types or `make`", kernel.name));
  for (const RegisteredKernel& known : kernels_)
    if (known.name == kernel.name)
      throw UserError(detail::format("registry: kernel '{}' is already registered", kernel.name));
  kernels_.push_back(std::move(kernel));
  return *this;
}

KernelDefinition Registry::make(std::string_view name, std::string_view type) const {
  const auto kernel = std::find_if(kernels_.begin(), kernels_.end(),
                                   [&](const RegisteredKernel& k) { return k.name == name; });
  if (kernel == kernels_.end())
    throw UserError(detail::format("unknown kernel '{}' (known: {})", name,
                                   join(kernels_, [](const auto& k) { return k.name; })));
  if (type.empty()) type = kernel->types.front();
  if (std::find(kernel->types.begin(), kernel->types.end(), type) == kernel->types.end())
    throw UserError(detail::format("kernel {} has no types '{}' (known: {})", name, type,
                                   join(kernel->types, [](const auto& t) { return t; })));
  return kernel->make(type);
}

}  // namespace kiln
