// Names of units of time, as people write them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kiln::runtime {

/// Seconds in one unit: `ms`, `milliseconds`, `miliseconds`, ...; upper and lower case alike.
/// Empty: milliseconds. Nothing for a name that is not known.
std::optional<double> seconds_per(std::string_view unit);

/// For messages.
std::string known_units();

}  // namespace kiln::runtime
