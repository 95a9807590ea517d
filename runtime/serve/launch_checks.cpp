#include "runtime/serve/launch_checks.hpp"

#include <algorithm>
#include <string_view>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "kiln/handle.hpp"
#include "runtime/support/type_names.hpp"

namespace kiln {

using detail::format;

namespace {

/// `given` is as device_name() spells it. A pointer to writable elements may be passed where the
/// kernel only reads.
bool accepts(std::string_view expected, std::string_view given) {
  constexpr std::string_view kConst = "const ";
  return expected == given || (given.ends_with('*') && expected.starts_with(kConst) &&
                               expected.substr(kConst.size()) == given);
}

bool is_integer(DataType type) { return type < DataType::f16; }

}  // namespace

std::vector<detail::Relation> runtime::relations_of(const KernelDefinition& kernel) {
  std::vector<detail::Relation> relations;
  const auto& fields = kernel.problem_fields;
  for (const ArgumentIsField& r : kernel.relations) {
    const std::string name = canonical_type(kernel.arguments[r.argument]);
    const auto type = name.ends_with('*') ? std::nullopt : element_type(name);
    if (!type || !is_integer(*type))
      throw UserError(
          format("kernel {}: `relations` say that argument {} is the problem's '{}', "
                 "but its type `{}` is not an integer",
                 kernel.name, r.argument, r.field, kernel.arguments[r.argument]));
    const auto field = std::find(fields.begin(), fields.end(), r.field);
    relations.push_back({r.argument, static_cast<std::size_t>(field - fields.begin()), *type});
  }
  return relations;
}

detail::Tunable detail::HandleCore::what() const noexcept { return definition(); }

void detail::HandleCore::compare(const ArgumentTypes& given) const {
  const KernelDefinition& d = definition();
  const std::vector<std::string>& types = given.names;
  if (types.size() != d.arguments.size())
    throw UserError(format("kernel {}: {} arguments given, the signature {} has {}", d.name,
                           types.size(), d.signature(), d.arguments.size()));
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (!accepts(d.arguments[i], types[i]) &&
        !accepts(runtime::canonical_type(d.arguments[i]), runtime::canonical_type(types[i])))
      throw UserError(format("kernel {}: argument {} is `{}`, the signature has `{}`", d.name, i,
                             types[i], d.arguments[i]));
  }
  for (auto& accepted : accepted_) {
    std::uint64_t none = 0;
    if (accepted.compare_exchange_strong(none, given.hash, std::memory_order_relaxed)) return;
  }
}

void detail::HandleCore::disagree(const Relation& relation, std::span<const std::int64_t> problem,
                                  void* const* args) const {
  const KernelDefinition& d = definition();
  throw UserError(format("kernel {}: argument {} (`{}`) is {}, but the problem's {} is {}", d.name,
                         relation.argument, d.arguments[relation.argument], relation.value(args),
                         d.problem_fields[relation.field], problem[relation.field]));
}

}  // namespace kiln
