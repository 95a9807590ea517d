// What may be used where nothing lies under the whole key, or where that cannot be known.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "cache/store.hpp"

namespace kiln::cache {

/// Looks by what is wanted (Key::portable) for an entry of the same source.
struct SubstituteSearch {
  EntryKind kind;
  const Digest& portable;
  Store::Where where;
  /// Whether an entry may be of the source that is wanted, as far as that can be read.
  const std::function<bool(const Key&)>& may_be_of;
  /// Where a source cannot be read, which one an entry is of. If there are several, all but one are
  /// stale, so none is taken. Empty: all can be read.
  std::function<std::string(const Key&)> unread_source{};
  /// As in Store::find_portable.
  std::function<bool(const StoredEntry&)> take{};
};

struct Substitute {
  std::optional<StoredEntry> entry{};
  std::size_t sources = 0;  ///< of which there are entries, if that is more than one
};

Substitute find_substitute(Store& store, const SubstituteSearch& search);

}  // namespace kiln::cache
