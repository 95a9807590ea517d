#include "tools/checks.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::tools {

CLI::Validator above_zero() {
  return CLI::Validator(
      [](std::string& given) {
        double value = 0;
        const auto end = given.data() + given.size();
        const auto read = std::from_chars(given.data(), end, value);
        if (read.ec == std::errc() && read.ptr == end && value > 0) return std::string();
        return "'" + given + "' is not a number above 0";
      },
      "above 0", "above 0");
}

void check_writable(const std::string& option, const std::string& file) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path path = fs::absolute(file, ignored);
  const bool there = fs::exists(path, ignored);
  const fs::path& asked = there ? path : path.parent_path();
  const char* why = there && fs::is_directory(path, ignored) ? "it is a folder"
                    : ::access(asked.c_str(), W_OK) == 0     ? nullptr
                                                             : std::strerror(errno);
  if (why)
    throw EnvironmentError(detail::format("{}: {} cannot be written: {}", option, file, why));
}

}  // namespace kiln::tools
