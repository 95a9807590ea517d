// Values and words as texts that digests are made of.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kiln::runtime {

/// Texts that differ where values do.
inline std::string text_of(std::span<const std::int64_t> values) {
  std::string text;
  for (const std::int64_t value : values) text += std::to_string(value) + ",";
  return text;
}

inline std::string text_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += std::to_string(word.size()) + ":" + word;
  return text;
}

}  // namespace kiln::runtime
