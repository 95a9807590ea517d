// Which directory the store uses when none, or a relative one, is named.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kiln::cache {

struct Location {
  std::filesystem::path directory;  ///< absolute, no trailing slash; empty: there is none
  std::string reason;               ///< why there is none
};

/// The variable's value; empty when it is not set. Valid until the environment changes.
std::string_view from_environment(const char* name);

/// `named` if not empty, else from the environment: see kiln::StoreOptions::directory.
Location locate(const std::filesystem::path& named);

}  // namespace kiln::cache
