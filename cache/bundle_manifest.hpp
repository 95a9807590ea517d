// A bundle's manifest: what made it, and how many entries it has for which kernel and target.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kiln/bundle.hpp"
#include "kiln/key.hpp"

namespace kiln::cache {

/// Counts entries by their keys' fields `kernel` and `target`; a key without one counts under "".
class PartCounter {
 public:
  void add(EntryKind kind, const Key& key);
  /// In the order of their names.
  std::vector<BundleInfo::Part> parts() const;

 private:
  struct Counts {
    std::uint64_t binaries = 0, records = 0;
  };
  std::map<std::pair<std::string, std::string>, Counts> counts_;
};

/// JSON text. What is not UTF-8 in names becomes U+FFFD.
std::string encode_manifest(const std::string& made_by, const std::vector<BundleInfo::Part>& parts);
/// Fills in made_by, the parts and the counts. Never throws because of what `text` holds.
std::optional<BundleInfo> decode_manifest(std::string_view text);

}  // namespace kiln::cache
