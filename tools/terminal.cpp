#include "tools/terminal.hpp"

#include <algorithm>
#include <cstdio>

#include <sys/ioctl.h>
#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "tools/report.hpp"

namespace kiln::tools {

namespace {

bool is_terminal() { return isatty(STDERR_FILENO) != 0; }

void erase_line() {
  if (is_terminal()) std::fputs("\r\033[K", stderr);
}

std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

void say_error(const std::string& text) {
  erase_line();
  std::fprintf(stderr, "%s\n", text.c_str());
}

ProgressBar::ProgressBar(std::string title) : title_(std::move(title)), terminal_(is_terminal()) {}

ProgressBar::~ProgressBar() {
  if (terminal_) erase_line();
}

bool ProgressBar::due() {
  const auto now = std::chrono::steady_clock::now();
  // Drawing takes CPU time from a host device that is being measured.
  if (!terminal_ || now - last_ < std::chrono::milliseconds(50)) return false;
  last_ = now;
  return true;
}

void ProgressBar::draw(std::string_view phase, std::size_t done, std::size_t total,
                       const std::string& rest) const {
  constexpr std::size_t kWidth = 24;
  const std::string filled(std::min(kWidth, kWidth * done / total), '=');
  std::string line = kiln::detail::format("{:<8}[{:<{}}] {}/{}  {}{}", phase, filled, kWidth, done,
                                          total, title_, rest);
  line.resize(std::min(line.size(), terminal_width() - 1));
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
}

void ProgressBar::show(const TuneProgress& progress) {
  if (progress.total == 0 || !due()) return;
  static constexpr const char* kNames[] = {"compile", "verify", "time", "finals"};
  draw(kNames[static_cast<int>(progress.phase)], progress.done, progress.total,
       ", " + std::to_string(progress.evaluated) + " tried" +
           (progress.best_seconds > 0 ? ", best " + show_time(progress.best_seconds) : ""));
}

void ProgressBar::show(const char* phase, std::size_t done, std::size_t total) {
  if (total != 0 && due()) draw(phase, done, total, "");
}

}  // namespace kiln::tools
