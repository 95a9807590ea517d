// Which directory the store uses when none, or a relative one, is named.
#pragma once

#include <filesystem>
#include <string>

namespace kiln::cache {

struct Location {
  std::filesystem::path directory;  ///< absolute, no trailing slash; empty: there is none
  std::string reason;               ///< why there is none
};

/// `named` if not empty, else from the environment: see kiln::StoreOptions::directory.
Location locate(const std::filesystem::path& named);

}  // namespace kiln::cache
