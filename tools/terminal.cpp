#include "tools/terminal.hpp"

#include <algorithm>
#include <cstdio>

#include <sys/ioctl.h>
#include <unistd.h>

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

void ProgressBar::show(const TuneProgress& progress) {
  const auto now = std::chrono::steady_clock::now();
  // Drawing costs time that a host device would be measured with.
  if (!terminal_ || progress.total == 0 || now - last_ < std::chrono::milliseconds(50)) return;
  last_ = now;
  static constexpr const char* kNames[] = {"compile", "verify", "time", "finals"};
  constexpr std::size_t kWidth = 24;
  const std::size_t filled = std::min(kWidth, kWidth * progress.done / progress.total);
  std::string line = std::string(kNames[static_cast<int>(progress.phase)]);
  line.resize(8, ' ');
  line += "[" + std::string(filled, '=') + std::string(kWidth - filled, ' ') + "] " +
          std::to_string(progress.done) + "/" + std::to_string(progress.total) + "  " + title_ +
          ", " + std::to_string(progress.evaluated) + " tried" +
          (progress.best_seconds > 0 ? ", best " + show_time(progress.best_seconds) : "");
  line.resize(std::min(line.size(), terminal_width() - 1));
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
}

}  // namespace kiln::tools
