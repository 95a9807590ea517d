#include "cache/size.hpp"

#include <charconv>
#include <limits>

namespace kiln::cache {

std::optional<std::uint64_t> parse_size(std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error != std::errc() || unit.size() > 1) return std::nullopt;
  if (unit.empty()) return value;
  const auto power = kUnits.find(unit[0]);
  if (power == kUnits.npos) return std::nullopt;
  const auto shift = 10 * (power + 1);
  if (value > std::numeric_limits<std::uint64_t>::max() >> shift) return std::nullopt;
  return value << shift;
}

}  // namespace kiln::cache
