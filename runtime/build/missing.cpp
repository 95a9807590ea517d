#include "kiln/missing.hpp"

#include <algorithm>

#include "kiln/detail/format.hpp"

namespace kiln {

std::vector<FieldDifference> differences(const Key& wanted, const Key& found) {
  const auto value_in = [](const Key& key, const std::string& name) -> const std::string* {
    const auto field = std::find_if(key.fields.begin(), key.fields.end(),
                                    [&](const KeyField& f) { return f.name == name; });
    return field == key.fields.end() ? nullptr : &field->value;
  };
  std::vector<FieldDifference> list;
  for (const KeyField& field : wanted.fields) {
    const std::string* other = value_in(found, field.name);
    if (!other || *other != field.value)
      list.push_back({field.name, field.value, other ? *other : std::string()});
  }
  // Only the fields that say what is wanted are compared, not those that say what a binary was made
  // with.
  for (std::size_t i = 0; i < std::min(found.portable_fields, found.fields.size()); ++i)
    if (const KeyField& field = found.fields[i]; !value_in(wanted, field.name))
      list.push_back({field.name, {}, field.value});
  return list;
}

std::string Missing::explain() const {
  std::string text = instance + " is in no store and no bundle";
  if (!why.empty()) text += ", and " + why;
  if (!closest) return text + "; there is no other binary of this kernel either";
  if (differences.empty())
    return text + "; an entry of that very name, " + closest->hex().substr(0, 16) +
           ", cannot be used: it is damaged, or of another source or compiler";
  text += "; the nearest binary, " + closest->hex().substr(0, 16) + ", differs in";
  for (const FieldDifference& d : differences)
    text += detail::format("\n  {}: wanted `{}`, found `{}`", d.field, d.wanted, d.found);
  return text;
}

}  // namespace kiln
