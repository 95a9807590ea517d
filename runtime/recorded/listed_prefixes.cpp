#include "runtime/recorded/listed_prefixes.hpp"

#include <algorithm>

namespace kiln::runtime {

namespace {

std::uint64_t extended(std::uint64_t hash, std::int64_t value) {
  hash = (hash ^ static_cast<std::uint64_t>(value)) * 0xff51afd7ed558ccd;
  return (hash ^ (hash >> 32)) * 0xc4ceb9fe1a85ec53;
}

}  // namespace

ListedPrefixes::ListedPrefixes(const RecordedSpace::Data& data) {
  std::vector<std::uint64_t> hashes(data.entries.size(), 0);
  double before = 1;
  for (std::size_t length = 1; length < data.parameters.size(); ++length) {
    const std::vector<std::int64_t>& values = data.parameters[length - 1].values;
    for (std::size_t i = 0; i < hashes.size(); ++i)
      hashes[i] = extended(hashes[i], values[data.point(i)[length - 1]]);
    std::vector<std::uint64_t> sorted = hashes;
    std::ranges::sort(sorted);
    const auto rest = std::ranges::unique(sorted);
    sorted.erase(rest.begin(), rest.end());
    const auto count = static_cast<double>(sorted.size());
    // Otherwise the new parameter excludes nothing: each shorter prefix goes with each value.
    if (count < before * static_cast<double>(values.size())) {
      lengths_.push_back(length);
      hashes_.push_back(std::move(sorted));
    }
    before = count;
  }
}

bool ListedPrefixes::listed(std::size_t which, std::span<const std::int64_t> config) const {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < lengths_[which]; ++i) hash = extended(hash, config[i]);
  return std::ranges::binary_search(hashes_[which], hash);
}

}  // namespace kiln::runtime
