// What a bench is asked to try: plain data, so that another process can try it as well.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "codegen/binary.hpp"
#include "kiln/definition.hpp"
#include "kiln/detail/launch_plan.hpp"
#include "kiln/device.hpp"
#include "kiln/workload.hpp"
#include "runtime/device/module_data.hpp"

namespace kiln::runtime {

/// What runs where nothing is compiled: something that the bench knows by name.
struct Implementation {
  std::string name;
  bool recordable = true;  ///< calls may be replayed as a graph
  /// Trials of one class must have the same outputs, bit for bit. Empty: of none.
  std::string numerics{};
};

/// What all trials of one problem share.
struct TrialData {
  std::string subject;  ///< for messages: `kernel add for n=1000`
  /// In signature order. Outputs hold what is expected, once that is known.
  std::vector<Workload::Argument> arguments;
  bool expected_known = false;
  Tolerance tolerance;
  double weight = 1;  ///< of this draw's times, where the problem has several
};

/// How the launches of a trial that runs by itself are timed. A race has options for all of its
/// contestants (race.hpp).
struct TimingPolicy {
  int warm_up = 2;                ///< launches that are not counted
  int launches = 7;               ///< that are
  bool cold_cache = false;        ///< no launch finds its data in the last-level cache
  bool overlap_launches = false;  ///< as in a race
  std::size_t in_a_row = 1;       ///< launches of one sample in step, where as many may be one
  bool replay = false;            ///< in step: several in a row as a graph, where that can be done
  bool verify = true;             ///< false in step: its results are known to be right
};

struct Trial {
  /// One more draw of the problem, which the trial is to be right on, and is timed on.
  struct Draw {
    std::vector<VariableData> variables;
    std::shared_ptr<const TrialData> data;
  };

  std::variant<std::shared_ptr<const codegen::Binary>, Implementation> code;
  Values config{};
  std::string text{};         ///< the config, for messages
  detail::LaunchPlan plan{};  ///< unused for an implementation
  std::vector<VariableData> variables{};
  std::shared_ptr<const TrialData> data{};  ///< null: the implementation has its own
  TimingPolicy timing{};
  std::vector<Draw> further{};  ///< besides that of `variables` and `data`
};

}  // namespace kiln::runtime
