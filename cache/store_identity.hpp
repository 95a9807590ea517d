// Which store this is, whatever path or machine it is seen from.
//
//   <directory>/v1/locks/identity     text: 32 random hexadecimal digits
#pragma once

#include <cstdint>
#include <optional>

#include "cache/disk_level.hpp"

namespace kiln::cache {

/// The first process that asks names the store; every other one reads the same name, over any
/// shared file system that shows one inode number everywhere. A copy of a store has another
/// identity.
/// Nothing when it has no directory to write to. Throws nothing but std::bad_alloc.
std::optional<std::uint64_t> identity_of(DiskLevel& disk);

}  // namespace kiln::cache
