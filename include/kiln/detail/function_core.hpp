// The part of a tuned function that does not depend on types. Implemented by the runtime.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/device.hpp"
#include "kiln/key.hpp"
#include "kiln/space.hpp"
#include "kiln/tune.hpp"

namespace kiln {

struct CallOptions;
struct FunctionOptions;
class Runtime;

namespace detail {

class Engine;

struct FunctionDescription {
  std::string name, version;
  std::vector<std::string> types;  ///< of a choice; part of its records, but of no key
  DynamicSpace space;
  std::vector<std::string> problem_fields;
  std::function<double(std::span<const std::int64_t>, std::span<const std::int64_t>,
                       const DeviceLimits&)>
      cost;
  std::function<std::string(std::span<const std::int64_t>, std::span<const std::int64_t>)> numerics;
  /// Of a problem, as a kernel's; empty: not known.
  std::function<double(std::span<const std::int64_t>)> flops, bytes;
  bool deterministic = false;
  bool changes_state = false, communicates = false, graph_replay = false;
  bool in_a_region = false;  ///< has records of its own: what is best there may not be best alone
  bool of_a_choice = false;  ///< its candidates are those of a choice's alternatives
  std::vector<LeftOut> left_out;  ///< those that have none: told in results, part of no key
  /// Those that are kernels, for a bucket; likewise. Empty: it is no choice.
  std::function<std::vector<KernelOfChoice>(std::span<const std::int64_t>)> kernels;
  /// If not empty, exactly these configs are searched.
  std::vector<Values> configs;
  std::vector<KeyField> versions;
};

/// One call with its arguments.
struct FunctionCall {
  Stream stream;
  std::function<void(std::span<const std::int64_t> knobs, Stream)> run;
  std::function<std::function<void(Stream)>(Stream)> snapshot;  ///< empty: nothing to put back
  std::function<bool()> verify;                                 ///< empty: nothing to verify
};

/// Thread-safe. Problems are bucketed. Knobs that were returned stay where they are as long as the
/// core.
class FunctionCore {
 public:
  virtual ~FunctionCore() = default;
  /// Null when the problem is not known yet. Lock-free, allocation-free.
  virtual const Values* find(std::span<const std::int64_t> problem) const noexcept = 0;
  /// Finds the knobs: in the store, or by tuning with `call`.
  virtual const Values& obtain(std::span<const std::int64_t> problem, const FunctionCall& call,
                               const CallOptions& how) = 0;
  virtual TuneResult tune(std::span<const std::int64_t> problem, const FunctionCall& call,
                          const CallOptions& how) = 0;
  virtual std::optional<TuneResult> known(std::span<const std::int64_t> problem) = 0;
  virtual const Values& default_knobs() const noexcept = 0;
  /// What a call, here or in a region, gets on a sealed runtime for a problem that is not in use:
  /// counted, and warned of or refused as seal() was told. @throws UnpreparedError
  virtual const Values& unprepared(std::span<const std::int64_t> problem) const = 0;

  // For regions, which choose for a function with their own means.
  virtual const FunctionDescription& description() const noexcept = 0;
  virtual const std::shared_ptr<Engine>& engine() const noexcept = 0;
  /// Calls from now on have these knobs.
  virtual void use(std::span<const std::int64_t> problem, const Values& knobs) = 0;
};

std::shared_ptr<FunctionCore> make_function_core(const Runtime& runtime,
                                                 FunctionDescription description,
                                                 FunctionOptions options);

}  // namespace detail
}  // namespace kiln
