#include "runtime/worker/isolation.hpp"

#include <charconv>
#include <cmath>

#include "kiln/detail/environment.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/installation.hpp"

namespace kiln::runtime {

Isolation isolation_mode(std::optional<Isolation> asked) {
  if (asked) return *asked;
  const std::string_view text = detail::environment("KILN_ISOLATION");
  if (text == "off") return Isolation::off;
  if (text == "always") return Isolation::always;
  if (text.empty() || text == "after_fault") return Isolation::after_fault;
  throw UserError(
      detail::format("KILN_ISOLATION is '{}': it must be off, after_fault or always", text));
}

double candidate_seconds(double asked) {
  const std::string_view text = detail::environment("KILN_CANDIDATE_SECONDS");
  if (asked > 0 || text.empty()) return asked;
  const char* const end = text.data() + text.size();
  double seconds = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc{} || stop != end || !(seconds > 0) || std::isinf(seconds))
    throw UserError(detail::format(
        "KILN_CANDIDATE_SECONDS is '{}': it must be a number of seconds above 0", text));
  return seconds;
}

WorkerOptions worker_options(const TuneOptions& tuning) {
  return {.executable = detail::installation().programs / "kiln-worker",
          .candidate_seconds = candidate_seconds(tuning.candidate_seconds),
          .most_seconds = tuning.max_seconds.value_or(0)};
}

}  // namespace kiln::runtime
