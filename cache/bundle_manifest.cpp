#include "cache/bundle_manifest.hpp"

#include <nlohmann/json.hpp>

namespace kiln::cache {
namespace {

using nlohmann::json;

constexpr int kDepth = 3;  // object, list of parts, part

std::string value_of(const Key& key, std::string_view name) {
  for (const KeyField& field : key.fields)
    if (field.name == name) return field.value;
  return {};
}

const std::string* text_at(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() ? found->get_ptr<const std::string*>() : nullptr;
}

const std::uint64_t* count_at(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() ? found->get_ptr<const json::number_unsigned_t*>() : nullptr;
}

}  // namespace

void PartCounter::add(EntryKind kind, const Key& key) {
  Counts& counts = counts_[{value_of(key, "kernel"), value_of(key, "target")}];
  ++(kind == EntryKind::binary ? counts.binaries : counts.records);
}

std::vector<BundleInfo::Part> PartCounter::parts() const {
  std::vector<BundleInfo::Part> parts;
  for (const auto& [names, counts] : counts_)
    parts.push_back({names.first, names.second, counts.binaries, counts.records});
  return parts;
}

std::string encode_manifest(const std::string& made_by,
                            const std::vector<BundleInfo::Part>& parts) {
  json list = json::array();
  for (const BundleInfo::Part& part : parts)
    list.push_back({{"kernel", part.kernel},
                    {"target", part.target},
                    {"binaries", part.binaries},
                    {"records", part.records}});
  return json{{"format", "kiln bundle"}, {"made_by", made_by}, {"parts", list}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

std::optional<BundleInfo> decode_manifest(std::string_view text) {
  bool deep = false;
  const auto shallow = [&deep](int depth, json::parse_event_t, json&) {
    deep = deep || depth > kDepth;
    return !deep;
  };
  const json manifest = json::parse(text, shallow, false);
  if (deep || !manifest.is_object()) return std::nullopt;
  const std::string* const made_by = text_at(manifest, "made_by");
  const auto parts = manifest.find("parts");
  if (made_by == nullptr || parts == manifest.end() || !parts->is_array()) return std::nullopt;

  BundleInfo info;
  info.made_by = *made_by;
  for (const json& part : *parts) {
    if (!part.is_object()) return std::nullopt;
    const std::string* const kernel = text_at(part, "kernel");
    const std::string* const target = text_at(part, "target");
    const std::uint64_t* const binaries = count_at(part, "binaries");
    const std::uint64_t* const records = count_at(part, "records");
    if (kernel == nullptr || target == nullptr || binaries == nullptr || records == nullptr)
      return std::nullopt;
    info.parts.push_back({*kernel, *target, *binaries, *records});
    info.binaries += *binaries;
    info.records += *records;
  }
  return info;
}

}  // namespace kiln::cache
