// A tuning's result in other forms: JSON for programs, the reason of a pick for people.
//
//   std::ofstream("result.json") << kiln::to_json(result);
#pragma once

#include <string>

#include "kiln/tune.hpp"

namespace kiln {

struct Roofline;

/// What `kiln tune --json` prints of a problem, as one line: `default`, `winner`, `candidates`
/// (each with its times or its reason), counts, the space, where the time went, versions; with
/// ranks `plan_digest`. Times are milliseconds (`_ms`) or seconds (`_s`). Rates are there where the
/// kernel says what it computes, percentages where a roofline is given. Bytes of compilers' logs
/// that are not UTF-8 are replaced.
std::string to_json(const TuneResult& result, const Roofline* roofline = nullptr);

/// Why the winner is not the candidate with the least `seconds`. Empty if it is that candidate, or
/// if nothing was measured.
std::string why_not_the_fastest(const TuneResult& result);

}  // namespace kiln
