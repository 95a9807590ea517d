// The memory and the cores that this process may use. Linux grants an allocation that is too large
// and kills the process later, so large allocations ask first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace kiln::runtime {

/// Bytes: what the machine can give without swapping (MemAvailable), or less where a control group
/// of this process (v1 or v2, or one around it) allows less, or slows its processes down beyond
/// less (memory.high). Nothing where neither can be read.
/// Reads files. @param root of the file system, for tests
std::optional<std::int64_t> available_memory(const std::filesystem::path& root = "/");

/// @throws UserError naming `what`, the bytes needed and the bytes available, when too few are
/// available. Amounts that any machine has are not checked, because a check takes some 50 us.
void require_memory(const char* what, std::uint64_t bytes);

/// The number of cores that this thread may run on, or fewer if a control group of this process (v1
/// or v2, or one around it) limits its processor time to fewer cores, rounded up. At least 1. Reads
/// files. @param root of the file system, for tests
unsigned usable_cores(const std::filesystem::path& root = "/");

/// The cores for one of `processes` processes of this machine: a part of usable_cores(), at least
/// 1. It is all of them if as many such sets of cores fit the machine, because the launcher of the
/// processes has divided the cores then. Reads files.
unsigned cores_shared_by(unsigned processes);

/// How many of `jobs` that take up to `bytes` of memory each may run at once, as far as the memory
/// goes that is available now. At least 1, where jobs >= 1. @param root of the file system, for
/// tests
unsigned jobs_that_fit(unsigned jobs, std::int64_t bytes, const std::filesystem::path& root = "/");

}  // namespace kiln::runtime
