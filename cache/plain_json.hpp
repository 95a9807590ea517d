// A fast reader of the JSON that Kiln itself writes. It understands less than the grammar allows,
// and says so, so that the library's parser has the last word on everything else.
#pragma once

#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

namespace kiln::cache {

/// What nlohmann::json::parse makes of `text`. Nothing where arrays and objects are nested beyond
/// `depth`, and where the text is not JSON or has anything that Kiln writes seldom: escapes, bytes
/// beyond ASCII, names twice in one object, integers of more than 18 digits, numbers that no double
/// holds. Never throws on account of the text.
std::optional<nlohmann::json> parse_plain(std::string_view text, int depth);

/// Destroys a value. The library moves all that is in an array or object elsewhere first, which
/// takes longer than to make it. @pre it is nested as deeply as parse_plain allows, at most
void discard(nlohmann::json& value);

}  // namespace kiln::cache
