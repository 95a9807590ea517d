// The JSON of a tuning's result. Records and kiln::to_json (`kiln tune --json`) are this, each with
// what it alone has.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kiln/tune.hpp"

namespace kiln::runtime {

/// `{"block": 256, "items": 4}`.
nlohmann::json by_name(const std::vector<std::string>& names, std::span<const std::int64_t> values);

/// Times in seconds; values of parameters as numbers.
nlohmann::json candidate_json(const TuneResult& result, const Candidate& candidate);

/// What was tuned, how the search went, all candidates; `default` and `winner` are configs. Without
/// what concerns this run alone (where the time went, warnings, ranks) and without versions.
nlohmann::json result_json(const TuneResult& result);

/// The result that result_json was given; JSON keeps no order of the problem's fields. Members that
/// it has not may be there, too. @throws std::exception for anything else.
TuneResult result_from(const nlohmann::json& json, const std::vector<std::string>& problem_fields);

}  // namespace kiln::runtime
