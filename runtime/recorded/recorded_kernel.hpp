// What a recorded space's kernel and its device agree on.
#pragma once

#include <optional>
#include <string_view>

#include "kiln/recorded.hpp"

namespace kiln::runtime {

/// A mark in the kernel's source, by which a device recognises the kernel of its own file.
std::string recorded_mark(const RecordedSpace& space);

/// `recorded<16, true, 4>` to the config's number; nothing when the space does not list it.
std::optional<std::size_t> recorded_index(const RecordedSpace& space, std::string_view entry);

/// What a right launch writes to the i-th of its elements.
constexpr float recorded_output(std::size_t i) { return static_cast<float>(i + 1); }

}  // namespace kiln::runtime
