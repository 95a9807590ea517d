// kiln::Cache: the store as a user looks after it, and what its records say.
#include "kiln/cache.hpp"

#include <nlohmann/json.hpp>

#include "cache/store.hpp"
#include "runtime/tune/record.hpp"

namespace kiln {

Cache::Cache(StoreOptions options) : store_(std::make_shared<cache::Store>(std::move(options))) {}

std::optional<TuneResult> Cache::result(const StoreEntry& entry) const {
  if (entry.kind != EntryKind::record) return {};
  const auto record = store_->find_record(entry.key);
  return record ? runtime::result_in(*record, entry.key) : std::nullopt;
}

StoreStatistics Cache::stats() const { return store_->stats(); }
VerifyReport Cache::verify() const { return store_->verify(); }
std::size_t Cache::clear() const { return store_->clear(); }
TrimReport Cache::trim(std::uint64_t max_bytes, std::uint64_t max_files) const {
  return store_->trim(max_bytes, max_files);
}
std::vector<StoreEntry> Cache::explain(std::string_view hex_prefix) const {
  return store_->explain(hex_prefix);
}

}  // namespace kiln
