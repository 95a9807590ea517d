// The manifest that runtimes of several processes add to.
#pragma once

#include <filesystem>

#include "kiln/manifest.hpp"

namespace kiln::runtime {

/// But for how often it was launched.
struct InstanceOrder {
  bool operator()(const WantedInstance& a, const WantedInstance& b) const;
};

/// Adds what the file does not have yet, and launches to those of what it has; makes the file if
/// there is none. Processes that do this at
/// the same time do not lose each other's instances, as long as the file system has locks.
/// @throws UserError when the file is there and is no manifest: it is left as it is;
/// EnvironmentError when it cannot be written
void add_to_manifest(const std::filesystem::path& file, const Manifest& wanted);

}  // namespace kiln::runtime
