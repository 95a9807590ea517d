#include "runtime/ship/record_library.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "cache/record.hpp"
#include "cache/root.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

using nlohmann::json;

namespace {

using Named = std::map<std::string, std::int64_t>;

/// What a record is about, as one text.
std::string subject(const std::string& kernel, const std::vector<std::string>& types,
                    const Named& problem, const std::string& target) {
  return json{kernel, types, problem, target}.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

RecordLibrary::RecordLibrary(std::span<const std::filesystem::path> paths) {
  for (const std::filesystem::path& path : paths) {
    const auto opened = cache::open_root(path, {});
    if (const auto* failure = std::get_if<cache::Failure>(&opened))
      throw UserError(
          detail::format("records of {}: {}; {}", path.string(), failure->what, failure->advice));
    cache::Root& root = *std::get<0>(opened);
    std::vector<Key> keys;
    root.each_key(EntryKind::record, [&](const Key& key) {
      keys.push_back(key);
      return true;
    });
    for (const Key& key : keys) {
      auto found = root.find(EntryKind::record, key);
      if (!found) continue;
      const auto record = cache::parse_record(found->payload);
      if (!record) continue;
      try {
        const std::string about = subject(record->at("kernel"), record->at("types"),
                                          record->at("problem"), key.value("target"));
        add(about, {key, std::move(found->payload), record->at("winner"), record->at("complete")});
      } catch (const json::exception&) {
        continue;  // of a version that says it otherwise
      }
    }
  }
}

void RecordLibrary::add(const std::string& about, Entry entry) {
  const auto [first, last] = entries_.equal_range(about);
  const auto same = std::find_if(
      first, last, [&](const auto& held) { return held.second.key.digest == entry.key.digest; });
  if (same == last)
    entries_.emplace(about, std::move(entry));
  else if (entry.complete && !same->second.complete)
    same->second = std::move(entry);
}

std::vector<const RecordLibrary::Entry*> RecordLibrary::find(const std::string& name,
                                                             const std::vector<std::string>& types,
                                                             const Named& problem,
                                                             const Target& target) const {
  std::vector<const Entry*> found;
  const auto [first, last] = entries_.equal_range(subject(name, types, problem, target.arch));
  for (auto entry = first; entry != last; ++entry) found.push_back(&entry->second);
  return found;
}

}  // namespace kiln::runtime
