// Words in messages of fixed size.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace kiln::runtime {

/// A longer text is cut, and bytes that are not text are read as spaces, whatever was received.
template <std::size_t Size>
struct FixedText {
  std::array<char, Size> chars{};

  FixedText() = default;
  explicit FixedText(std::string_view text) noexcept { set(text); }

  void set(std::string_view text) noexcept {
    chars.fill('\0');
    std::copy_n(text.begin(), std::min(text.size(), Size), chars.begin());
  }
  std::string get() const {
    std::string text(chars.begin(), std::find(chars.begin(), chars.end(), '\0'));
    for (char& c : text)
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    return text;
  }
  bool empty() const noexcept { return chars[0] == '\0'; }
};

}  // namespace kiln::runtime
