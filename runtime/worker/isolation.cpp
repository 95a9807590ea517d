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

WorkerOptions worker_options(const TuneOptions& tuning) {
  WorkerOptions options{.executable = detail::installation().programs / "kiln-worker",
                        .candidate_seconds = tuning.candidate_seconds,
                        .most_seconds = tuning.max_seconds.value_or(0)};
  const std::string_view text = detail::environment("KILN_CANDIDATE_SECONDS");
  if (options.candidate_seconds > 0 || text.empty()) return options;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, options.candidate_seconds);
  if (error != std::errc{} || stop != end || !(options.candidate_seconds > 0) ||
      std::isinf(options.candidate_seconds))
    throw UserError(detail::format(
        "KILN_CANDIDATE_SECONDS is '{}': it must be a number of seconds above 0", text));
  return options;
}

}  // namespace kiln::runtime
