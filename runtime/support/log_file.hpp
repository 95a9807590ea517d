// Log sinks of Kiln's own, for programs that set none.
#pragma once

#include <filesystem>

#include "kiln/log.hpp"

namespace kiln::runtime {

/// Messages of at least that level, with time and level, to the end of a file. A message is written
/// in one piece, so several processes may share the file. @throws EnvironmentError when the file
/// cannot be opened
LogSink log_to_file(const std::filesystem::path& file, LogLevel least);
/// The same to standard error.
LogSink log_to_standard_error(LogLevel least);

const char* to_string(LogLevel level) noexcept;

}  // namespace kiln::runtime
