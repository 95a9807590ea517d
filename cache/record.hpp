// The text of a record: JSON that a person can read, closed by a checksum line. Grammar in
// cache/FORMAT.md. Pure functions, no files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "cache/entry.hpp"
#include "kiln/key.hpp"

namespace kiln::cache {

inline constexpr std::uint32_t kRecordVersion = 2;        // written
inline constexpr std::uint32_t kOldestRecordVersion = 1;  // still read

/// How deeply arrays and objects may be nested in a record, its own level included. The library
/// that copies and prints them recurses for each level, and records may come from anyone.
inline constexpr int kRecordDepth = 100;
/// The levels that a record's file puts around it.
inline constexpr int kFrameDepth = 1;

struct DecodedRecord {
  DecodeStatus status = DecodeStatus::damaged;
  std::string why;        ///< when not valid
  Key key;                ///< when valid; of version 1 without what is portable
  nlohmann::json record;  ///< when valid
};

/// JSON knows no NaN or infinity: such numbers become null. Bytes that are not UTF-8 become U+FFFD.
std::string encode_record(const Key& key, const nlohmann::json& record);

/// Never throws on account of `text`.
DecodedRecord decode_record(std::string_view text);

/// A record as a payload: JSON text on one line, under encode_record's rules.
std::string record_text(const nlohmann::json& record);

/// The record in a payload. Nothing if it is not JSON or is nested more deeply than kRecordDepth;
/// where `text` has levels `around` the record, they are allowed beside those. Never throws on
/// account of `text`.
std::optional<nlohmann::json> parse_record(std::string_view text, int around = 0);
std::optional<nlohmann::json> parse_record(std::span<const std::byte> payload);

/// Whether parse_record would find it nested too deeply. Such a record is not to be written.
bool is_too_deep(const nlohmann::json& record);

/// `key` as it reads back from a record: with U+FFFD for what is not UTF-8.
Key printable(const Key& key);

}  // namespace kiln::cache
