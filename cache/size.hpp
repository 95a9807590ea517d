// Sizes as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kiln::cache {

/// Bytes, or with K, M, G or T (of 1024) behind: `5G`. Nothing for anything else.
std::optional<std::uint64_t> parse_size(std::string_view text);

}  // namespace kiln::cache
