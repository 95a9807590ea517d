// A cache directory as a read-only root: another user's, or one's own under another writable store.
#pragma once

#include <filesystem>
#include <memory>
#include <variant>

#include "cache/root.hpp"

namespace kiln::cache {

/// A cache directory that is only read, and whose entries' time stamps are left alone. It may
/// belong to any user. Anything that is not a directory, or that group or others may write to, is
/// refused. A link to a directory is followed here, nowhere below.
std::variant<std::unique_ptr<Root>, Failure> make_directory_root(const std::filesystem::path& path);

}  // namespace kiln::cache
