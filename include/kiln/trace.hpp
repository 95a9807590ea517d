// Where the time of a tuning run went, as Chrome's trace viewer and Perfetto show it.
//
//   kiln::TuneResult r = tuned.tune(problem);
//   kiln::write_chrome_trace("tuning.json", {&r, 1});
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "kiln/version.hpp"

namespace kiln {

struct TuneResult;

/// One piece of work. Spans of a lane do not overlap.
struct TraceSpan {
  std::string name;    ///< compile, load, verify, time, finals, search, save
  std::string lane;    ///< `tuner`, or `compiler 0`, ...
  std::string detail;  ///< e.g. the config
  double begin = 0;    ///< seconds on the process's steady clock
  double seconds = 0;
};

/// All spans of the results on one time line, in the Trace Event Format ("X" events, microseconds).
/// Ranks are processes, and an arrow leads from where a config was compiled, or found in the store,
/// to where it was loaded. Replaces the file. @throws EnvironmentError when it cannot be written.
void write_chrome_trace(const std::filesystem::path& file, std::span<const TuneResult> results);

}  // namespace kiln
