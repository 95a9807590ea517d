// The text of a record: JSON that a person can read, closed by a checksum line. Grammar in
// cache/FORMAT.md. Pure functions, no files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "cache/entry.hpp"
#include "kiln/key.hpp"

namespace kiln::cache {

inline constexpr std::uint32_t kRecordVersion = 1;

struct DecodedRecord {
  DecodeStatus status = DecodeStatus::damaged;
  std::string why;        ///< when not valid
  Key key;                ///< when valid
  nlohmann::json record;  ///< when valid
};

/// JSON knows no NaN or infinity: such numbers become null. Bytes that are not UTF-8 become U+FFFD.
std::string encode_record(const Key& key, const nlohmann::json& record);

/// Never throws on account of `text`.
DecodedRecord decode_record(std::string_view text);

/// `key` as it reads back from a record: with U+FFFD for what is not UTF-8.
Key printable(const Key& key);

}  // namespace kiln::cache
