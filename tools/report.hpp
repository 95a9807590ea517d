// Tuning results for people and for programs.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kiln/metrics.hpp"
#include "kiln/roofline.hpp"
#include "kiln/tune.hpp"

namespace kiln::tools {

/// `gemm<float,nt> m=8,n=16,k=32`. Types whose names people do not write, those of C++ namespaces,
/// say what the kernel's name says, too: they are left out.
std::string subject_text(std::string_view kernel, std::span<const std::string> types,
                         std::span<const std::string> fields,
                         std::span<const std::int64_t> problem);

/// Several lines: what was considered, why candidates fell out, where the time went, default
/// against winner; with a roofline also how far they are from it.
std::string describe(const TuneResult& result, const Roofline* roofline = nullptr);

/// What a table of many problems says of one: kernel and problem, the default's time and the
/// winner's, how many times as fast that is, its part of the roofline, the norm of its error and
/// what is allowed. `launch`: against the host's reference; null: as it was found in the search.
using SummaryRow = std::array<std::string, 7>;
SummaryRow summary_row(const TuneResult& result, const Roofline* roofline = nullptr,
                       const Verification* launch = nullptr);
/// With a line of titles.
std::string summary(const std::vector<SummaryRow>& rows);

/// Three lines: the instance, whether it is right, and its time.
std::string describe_timing(const TuneResult& result, const Roofline* roofline = nullptr);

/// As kiln::to_json, with the roofline.
nlohmann::json report_json(const TuneResult& result, const Roofline* roofline = nullptr);
nlohmann::json to_json(const Roofline& roofline);

/// `1.23 ms`, `45.6 us`.
std::string show_time(double seconds);
/// `35.1 GFLOP/s`, `1.23 TFLOP/s`: three digits, and the prefix that suits them.
std::string show_rate(double per_second, const char* unit);

}  // namespace kiln::tools
