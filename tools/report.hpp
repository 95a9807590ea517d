// Tuning results for people and for programs.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "kiln/tune.hpp"

namespace kiln::tools {

/// Several lines: what was considered, why candidates fell out, default against winner.
std::string describe(const TuneResult& result);

nlohmann::json to_json(const TuneResult& result);

/// `1.23 ms`, `45.6 us`.
std::string show_time(double seconds);

}  // namespace kiln::tools
