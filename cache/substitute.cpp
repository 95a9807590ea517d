#include "cache/substitute.hpp"

#include <set>

namespace kiln::cache {

Substitute find_substitute(Store& store, const SubstituteSearch& search) {
  if (search.unread_source) {
    std::set<std::string> sources;
    for (const Key& key : store.portable_keys(search.kind, search.portable, search.where))
      if (search.may_be_of(key)) sources.insert(search.unread_source(key));
    if (sources.size() > 1) return {.sources = sources.size()};
  }
  return {.entry = store.find_portable(search.kind, search.portable, search.where, search.may_be_of,
                                       search.take)};
}

}  // namespace kiln::cache
