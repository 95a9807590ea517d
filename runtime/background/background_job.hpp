// A problem that is tuned behind the launches.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "kiln/definition.hpp"
#include "runtime/measure/trial_data.hpp"
#include "runtime/serve/served_handle.hpp"
#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

struct BackgroundJob {
  std::weak_ptr<ServedHandle> handle;
  const void* place = nullptr;  ///< of the handle, to compare
  std::shared_ptr<const KernelDefinition> kernel;
  Values problem;
  std::deque<Values> to_compile;  ///< ahead of measuring
  bool listed = false;            ///< what is compiled ahead
  bool begun = false;             ///< something of it is on record
  int attempts = 0;               ///< that ended with an error
  double slices = 1;              ///< of the duty: the length of a stretch of measuring
  bool in_finals = false;         ///< only the finals of the search are left
  int cut_finals = 0;             ///< stretches of measuring that ended before or in the finals
  Clock::time_point not_before{};
};

/// What one job's trials are made of, in host memory: kept from one stretch of measuring to the
/// next.
struct JobData {
  std::shared_ptr<const KernelDefinition> kernel;  ///< of one handle; `draws` refer to it
  Values problem;
  std::vector<KernelData> draws;

  bool of(const BackgroundJob& job) const {
    return kernel && kernel == job.kernel && problem == job.problem;
  }
};

}  // namespace kiln::runtime
