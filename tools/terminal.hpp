// Progress, on a terminal only.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "kiln/tune.hpp"

namespace kiln::tools {

/// One line to standard error, after removing a progress bar that may stand there.
void say_error(const std::string& text);

/// A bar on standard error while something goes on; silent when that is not a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(const TuneProgress& progress);
  /// `compile [===   ] 12/96  TITLE`.
  void show(const char* phase, std::size_t done, std::size_t total);

 private:
  bool due();
  void draw(std::string_view phase, std::size_t done, std::size_t total,
            const std::string& rest) const;

  std::string title_;
  bool terminal_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace kiln::tools
