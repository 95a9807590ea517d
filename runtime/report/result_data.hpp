// One result as a report shows it.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "kiln/roofline.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/report/reported.hpp"

namespace kiln::runtime {

/// What kiln::Choice calls the parameter that names its alternatives.
inline constexpr const char* kAlternative = "alternative";

/// Where a candidate's time lies, with 95 %: the interval of its samples' location, moved with the
/// location to `Candidate::seconds`. Nothing where the samples are too few to say.
std::optional<Interval> interval_of(const Candidate& candidate);

/// Why a candidate is not the winner, on one line; empty for the winner.
std::string why_it_lost(const TuneResult& result, std::size_t candidate);

/// Candidates by columns, texts once each, the path of the best so far, alternatives of a choice.
/// @param roofline the device's; null: not known
nlohmann::json result_data(const Reported& reported, const Roofline* roofline);

/// Rounds to seven digits, which is more than any clock tells and takes less room.
double shortened(double value);

}  // namespace kiln::runtime
