// Where Kiln's messages go: to the caller's sink; without one, where RuntimeOptions::log says.
//
//   options.log = [](kiln::LogLevel level, std::string_view text) { my_logger(level, text); };
#pragma once

#include <functional>
#include <string_view>

#include "kiln/version.hpp"

namespace kiln {

enum class LogLevel { debug, info, warning, error };

/// Called with one complete message, without a trailing newline. Kiln may call it from any thread,
/// also from several at once: a sink does its own locking and must not throw. Empty: silence,
/// but for RuntimeOptions::log.
using LogSink = std::function<void(LogLevel, std::string_view)>;

}  // namespace kiln
