// What ranks hold, in the places of a message whose size does not depend on the number of problems.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "runtime/ranks/messages.hpp"

namespace kiln::runtime {

/// Problem s is in place s % kPlaces. `held(s)` says what this rank holds of it; empty: nothing,
/// which makes the place 0.
ranks::HeldMessage::Places places_of(std::size_t problems,
                                     const std::function<std::string(std::size_t)>& held);

/// Whether all ranks hold the same in a place, and lack nothing there.
std::array<bool, ranks::HeldMessage::kPlaces> held_by_all(
    std::span<const ranks::HeldMessage> all,
    ranks::HeldMessage::Places ranks::HeldMessage::* places);

}  // namespace kiln::runtime
