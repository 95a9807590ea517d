#include "cache/record.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "cache/plain_json.hpp"

namespace kiln::cache {
namespace {

using nlohmann::json;

constexpr std::string_view kRecordFormat = "kiln record";
constexpr std::string_view kBeforeChecksum = ",\n  \"sha256\": \"";
constexpr std::string_view kAfterChecksum = "\"\n}\n";
constexpr std::size_t kHexSize = 2 * sizeof(Digest);
constexpr std::size_t kTrailer = kBeforeChecksum.size() + kHexSize + kAfterChecksum.size();

constexpr std::array<std::pair<char, std::string_view>, 5> kTypeNames{
    {{'k', "kind"}, {'s', "text"}, {'i', "integer"}, {'l', "list"}, {'d', "digest"}}};

std::string dump(const json& value, int indent = -1) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string_view type_name(char type) {
  for (const auto& [letter, name] : kTypeNames)
    if (letter == type) return name;
  return "text";
}

std::optional<KeyField> read_field(const json& field) {
  if (!field.is_array() || field.size() != 3) return std::nullopt;
  for (const json& part : field)
    if (!part.is_string()) return std::nullopt;
  for (const auto& [letter, name] : kTypeNames)
    if (field[0].get_ref<const std::string&>() == name)
      return KeyField{field[1].get<std::string>(), field[2].get<std::string>(), letter};
  return std::nullopt;
}

std::optional<Digest> read_digest(const json& value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (!value.is_string()) return std::nullopt;
  const auto& hex = value.get_ref<const std::string&>();
  if (hex.size() != kHexSize) return std::nullopt;
  Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const auto high = kDigits.find(hex[2 * i]), low = kDigits.find(hex[2 * i + 1]);
    if (high == kDigits.npos || low == kDigits.npos) return std::nullopt;
    digest[i] = static_cast<std::byte>(high << 4 | low);
  }
  return digest;
}

/// The parser itself does not recurse, but what it makes can be neither copied nor printed.
bool is_nested_beyond(std::string_view text, int most) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\')
      ++i;
    else if (c == '"')
      in_string = !in_string;
    else if (!in_string && (c == '[' || c == '{') && ++depth > most)
      return true;
    else if (!in_string && (c == ']' || c == '}'))
      --depth;
  }
  return false;
}

bool is_nested_beyond(const json& value, int most) {
  if (!value.is_structured()) return false;
  if (most == 0) return true;
  return std::any_of(value.begin(), value.end(),
                     [&](const json& inner) { return is_nested_beyond(inner, most - 1); });
}

DecodedRecord no_record(DecodeStatus status, std::string why) {
  DecodedRecord record;
  record.status = status;
  record.why = std::move(why);
  return record;
}

}  // namespace

std::string encode_record(const Key& key, const json& record) {
  std::string text =
      "{\n  \"format\": " + dump(kRecordFormat) +
      ",\n  \"version\": " + std::to_string(kRecordVersion) +
      ",\n  \"digest\": " + dump(key.hex()) + ",\n  \"portable\": " + dump(to_hex(key.portable)) +
      ",\n  \"portable_fields\": " + std::to_string(key.portable_fields) + ",\n  \"key\": [";
  const char* separator = "\n    ";
  for (const KeyField& field : key.fields) {
    text += separator + dump(json::array({type_name(field.type), field.name, field.value}));
    separator = ",\n    ";
  }
  text += "\n  ],\n  \"record\": ";
  for (char c : dump(record, 2)) {  // line ends inside strings are escaped, these are layout
    text += c;
    if (c == '\n') text += "  ";
  }
  const std::string checksum = to_hex(sha256(std::string_view(text)));
  text.append(kBeforeChecksum).append(checksum).append(kAfterChecksum);
  return text;
}

DecodedRecord decode_record(std::string_view text) {
  if (text.size() < kTrailer)
    return no_record(DecodeStatus::damaged, "it is shorter than any record");
  const std::string_view body = text.substr(0, text.size() - kTrailer);
  std::string_view trailer = text.substr(body.size());
  if (!trailer.starts_with(kBeforeChecksum) || !trailer.ends_with(kAfterChecksum))
    return no_record(DecodeStatus::damaged, "it does not end like a record");
  if (trailer.substr(kBeforeChecksum.size(), kHexSize) != to_hex(sha256(body)))
    return no_record(DecodeStatus::damaged, "its checksum does not match");

  std::optional<json> parsed = parse_record(text, kFrameDepth);
  if (!parsed) return no_record(DecodeStatus::damaged, "it is not JSON, or is nested too deeply");
  json& file = *parsed;
  if (!file.is_object() || file.value("format", json()) != kRecordFormat)
    return no_record(DecodeStatus::damaged, "it is not a record");
  const json version = file.value("version", json());
  if (!version.is_number_unsigned())
    return no_record(DecodeStatus::damaged, "it has no format version");
  if (version < kOldestRecordVersion || version > kRecordVersion)
    return no_record(version > kRecordVersion ? DecodeStatus::newer : DecodeStatus::older,
                     "format version " + version.dump() + ", but this Kiln reads " +
                         std::to_string(kOldestRecordVersion) + " to " +
                         std::to_string(kRecordVersion));

  DecodedRecord decoded;
  const std::optional<Digest> digest = read_digest(file.value("digest", json()));
  const auto fields = file.find("key");
  if (!digest || fields == file.end() || !fields->is_array() || !file.contains("record"))
    return no_record(DecodeStatus::damaged, "its key or record is missing");
  decoded.key.digest = *digest;
  for (const json& field : *fields) {
    std::optional<KeyField> read = read_field(field);
    if (!read) return no_record(DecodeStatus::damaged, "a field of its key is malformed");
    decoded.key.fields.push_back(*std::move(read));
  }
  if (version >= 2u) {
    const std::optional<Digest> portable = read_digest(file.value("portable", json()));
    const json wanted = file.value("portable_fields", json());
    if (!portable || !wanted.is_number_unsigned() || wanted > decoded.key.fields.size())
      return no_record(DecodeStatus::damaged, "the portable part of its key is missing");
    decoded.key.portable = *portable;
    decoded.key.portable_fields = wanted.get<std::size_t>();
  }
  decoded.record = std::move(file["record"]);
  discard(file);
  decoded.status = DecodeStatus::valid;
  return decoded;
}

std::string record_text(const json& record) { return dump(record); }

std::optional<json> parse_record(std::string_view text, int around) {
  if (auto plain = parse_plain(text, kRecordDepth + around)) return plain;
  if (is_nested_beyond(text, kRecordDepth + around)) return std::nullopt;
  json record = json::parse(text, nullptr, false);
  if (record.is_discarded()) return std::nullopt;
  return record;
}

std::optional<json> parse_record(std::span<const std::byte> payload) {
  return parse_record(
      std::string_view(reinterpret_cast<const char*>(payload.data()), payload.size()));
}

bool is_too_deep(const json& record) { return is_nested_beyond(record, kRecordDepth); }

Key printable(const Key& key) {
  Key result{key.digest, key.portable, key.portable_fields, {}};
  for (const KeyField& field : key.fields)
    result.fields.push_back({json::parse(dump(field.name)).get<std::string>(),
                             json::parse(dump(field.value)).get<std::string>(), field.type});
  return result;
}

}  // namespace kiln::cache
