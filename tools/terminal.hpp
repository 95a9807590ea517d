// Progress, on a terminal only.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kiln/tune.hpp"

namespace kiln::tools {

/// One line to standard error, after removing a progress bar that may stand there.
void say_error(const std::string& text);

/// What ends a search, as far as it is given.
struct SearchLimits {
  double seconds = 0;           ///< from the bar's beginning; 0: none
  std::size_t evaluations = 0;  ///< earlier runs' included; 0: none
};

/// How long a search will still take: `12 s left`; by its pace if only evaluations limit it (`about
/// 12 s left`); what it has taken (`12 s`) where nothing does, or nothing has been tried yet.
/// @param evaluated_before when the bar began
std::string time_left(const SearchLimits& limits, double elapsed, std::size_t evaluated_before,
                      std::size_t evaluated);

/// A bar on standard error while something goes on; silent when that is not a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title, SearchLimits limits = {});
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Phase, what was tried, the best time, the time left. `subject` says what is
  /// tuned, if the title does not.
  void show(const TuneProgress& progress, const std::function<std::string()>& subject = {});
  /// `compile [===   ] 12/96  TITLE`.
  void show(const char* phase, std::size_t done, std::size_t total);

 private:
  bool due();
  /// A terminal that is too narrow has the text's beginning.
  static void draw(std::string_view phase, std::size_t done, std::size_t total,
                   const std::string& text);

  const std::string title_;
  const SearchLimits limits_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::optional<std::size_t> evaluated_before_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace kiln::tools
