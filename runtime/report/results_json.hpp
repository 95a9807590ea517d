// Reads back what `kiln tune --json` printed.
#pragma once

#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "runtime/report/reported.hpp"

namespace kiln::runtime {

/// Calls `found` for each result: of a problem, of several, of a rank's log, or of `kiln cache
/// explain --json`; and `not_one` at most once, with what the rest is instead. Sets all but source
/// and time.
void each_printed_result(const nlohmann::json& printed, const std::function<void(Reported)>& found,
                         const std::function<void(std::string)>& not_one);

}  // namespace kiln::runtime
