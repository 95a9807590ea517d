// Between libkiln and the plugin that is linked to an MPI: one function.
#pragma once

#include <string>

#include "kiln/communicator.hpp"

extern "C" {
/// Compared by both sides, so that a plugin of another build is refused, not called.
inline constexpr int kKilnMpiPluginVersion = 1;
using KilnMpiPluginVersion = int();
/// A communicator, or null and an error.
using KilnMpiOpen = kiln::Communicator*(const kiln::Deadline& deadline, std::string& error);
}
