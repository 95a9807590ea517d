// Opening a file that a person named, when it may turn out to be anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <variant>

#include "cache/file_system.hpp"
#include "cache/unique_fd.hpp"

namespace kiln::cache {

struct RegularFile {
  UniqueFd fd;
  std::uint64_t size = 0;  ///< in bytes, when it was opened
};

/// Opens for reading, following links; never waits for the other end of a FIFO. Refused: anything
/// that is not a regular file, or that group or others may write to. `what` is for messages: "a
/// bundle".
std::variant<RegularFile, Failure> open_regular(const std::filesystem::path& path,
                                                const char* what);

/// A failed call on a file that a person named.
Failure file_failure(const char* call, const std::filesystem::path& path, int code);

}  // namespace kiln::cache
