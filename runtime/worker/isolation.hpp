// Whether, where and for how long candidates run in a worker.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include <sys/types.h>

#include "kiln/error.hpp"
#include "kiln/tune.hpp"

namespace kiln::runtime {

/// `asked`, else what $KILN_ISOLATION says. @throws UserError when that is not one of its values
Isolation isolation_mode(std::optional<Isolation> asked);

struct WorkerOptions {
  std::filesystem::path executable{};  ///< empty: that of the installation
  double candidate_seconds = 0;        ///< as TuneOptions; 0: by what was seen
  /// What a whole tuning may take: a candidate that takes longer is cut off, once another one has
  /// ended. 0: no limit.
  double most_seconds = 0;
  std::uint64_t reserve_bytes = 0;  ///< as Device::reserve
  /// Bytes that a worker may grow by once it has its data. 0: by the data.
  std::uint64_t memory = 0;
  /// Bytes that the machine has left; empty: available_memory(). For tests
  std::function<std::optional<std::int64_t>()> available{};
  /// Called when a worker has taken the place of one that is gone, with the cause: a value of
  /// Counters::worker_restarts. Empty: nobody is told.
  std::function<void(std::string_view cause)> restarted{};
  /// Called before the worker is asked for something, with what that is: `load`, `verify`, `time`.
  std::function<void(pid_t worker, std::string_view step)> journal{};
};

/// What a candidate may take for one verification or one sample: `asked`, else what
/// $KILN_CANDIDATE_SECONDS says; 0: nobody says. @throws UserError when that is no number of
/// seconds
double candidate_seconds(double asked);

/// What all launches of a candidate that ranks run in step may take together, where nobody says.
inline constexpr double kLockstepCandidateSeconds = 20;

/// @throws likewise
WorkerOptions worker_options(const TuneOptions& tuning);

/// Why trials never run in a worker here, whatever the moment: what passes is no such reason.
class CannotIsolate : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

}  // namespace kiln::runtime
