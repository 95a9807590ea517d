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

std::string time_left(const SearchLimits& limits, double elapsed, std::size_t evaluated_before,
                      std::size_t evaluated) {
  // A search that is over its limit is finishing what it has begun.
  if (limits.seconds > 0)
    return kiln::detail::format("{:.0f} s left", std::max(0.0, limits.seconds - elapsed));
  if (limits.evaluations == 0 || evaluated <= evaluated_before)
    return kiln::detail::format("{:.0f} s", elapsed);
  const std::size_t open = limits.evaluations - std::min(limits.evaluations, evaluated);
  const double pace = elapsed / static_cast<double>(evaluated - evaluated_before);
  return kiln::detail::format("about {:.0f} s left", pace * static_cast<double>(open));
}

ProgressBar::ProgressBar(std::string title, SearchLimits limits)
    : title_(std::move(title)), limits_(limits), terminal_(is_terminal()) {}

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
                       const std::string& text) {
  constexpr std::size_t kWidth = 24;
  const std::string filled(std::min(kWidth, kWidth * done / total), '=');
  std::string line =
      kiln::detail::format("{:<8}[{:<{}}] {}/{}  {}", phase, filled, kWidth, done, total, text);
  line.resize(std::min(line.size(), terminal_width() - 1));
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
}

void ProgressBar::show(const TuneProgress& progress, const std::function<std::string()>& subject) {
  if (!evaluated_before_) evaluated_before_ = progress.evaluated;
  if (progress.total == 0 || !due()) return;
  static constexpr const char* kNames[] = {"compile", "verify", "time", "finals"};
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::string numbers = kiln::detail::format("{} tried, ", progress.evaluated);
  if (progress.best_seconds > 0) numbers += "best " + show_time(progress.best_seconds) + ", ";
  numbers += time_left(limits_, elapsed, *evaluated_before_, progress.evaluated);
  draw(kNames[static_cast<int>(progress.phase)], progress.done, progress.total,
       numbers + ": " + title_ + (subject ? ", " + subject() : ""));
}

void ProgressBar::show(const char* phase, std::size_t done, std::size_t total) {
  if (total != 0 && due()) draw(phase, done, total, title_);
}

}  // namespace kiln::tools
