#include "runtime/support/log_file.hpp"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

namespace {

std::string now_in_utc() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return detail::format("{}.{:03}Z", text, now.tv_nsec / 1000000);
}

/// A message that cannot be written is lost: there is nowhere to complain.
void write_line(int file, LogLevel level, std::string_view text) noexcept {
  try {
    const std::string line =
        detail::format("{} kiln[{}] {}: {}\n", now_in_utc(), getpid(), to_string(level), text);
    ssize_t written = 0;
    do {
      written = ::write(file, line.data(), line.size());
    } while (written < 0 && errno == EINTR);
  } catch (const std::exception&) {
  }
}

}  // namespace

const char* to_string(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
  }
  return "error";
}

LogSink log_to_file(const std::filesystem::path& file, LogLevel least) {
  const int opened = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (opened < 0)
    throw EnvironmentError(detail::format("the log file {} cannot be opened: {}", file.string(),
                                          std::strerror(errno)));
  const auto closer = [](const int* fd) {
    ::close(*fd);
    delete fd;
  };
  return [fd = std::shared_ptr<const int>(new int(opened), closer), least](LogLevel level,
                                                                           std::string_view text) {
    if (level >= least) write_line(*fd, level, text);
  };
}

LogSink log_to_standard_error(LogLevel least) {
  return [least](LogLevel level, std::string_view text) {
    if (level >= least) write_line(STDERR_FILENO, level, text);
  };
}

}  // namespace kiln::runtime
