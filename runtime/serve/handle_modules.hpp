// The kernels that one handle has loaded: problems share one where launches cannot tell.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cache/single_flight.hpp"
#include "kiln/detail/launch_plan.hpp"
#include "kiln/key.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// Thread-safe. A kernel without variables serves all problems that are launched with the same
/// config and need the same of the device; one with variables has a problem's data, and serves that
/// problem alone.
class HandleModules {
 public:
  enum class Keep {
    while_used,  ///< by a problem, a Bound, a graph
    always       ///< as long as the handle: graphs may use what no problem uses any more
  };

  using Count = std::atomic<std::uint64_t>;
  /// `unloaded`: where their ends are counted.
  HandleModules(Keep keep, std::shared_ptr<Count> unloaded)
      : keep_(keep), unloaded_(std::move(unloaded)) {}

  /// What is loaded already of this binary and serves the problem. Null: nothing, or the binary has
  /// no key.
  std::shared_ptr<const Module> find(const std::optional<Digest>& binary,
                                     std::span<const std::int64_t> problem,
                                     const detail::LaunchPlan& plan) const;
  /// The same, else what `load` returns, which must add() it. One thread at a time loads what
  /// others may share. @throws what `load` throws
  std::shared_ptr<const Module> find_or_load(
      const std::optional<Digest>& binary, std::span<const std::int64_t> problem,
      const detail::LaunchPlan& plan, const std::function<std::shared_ptr<const Module>()>& load);
  /// It is found from now on, if its binary has a key. Returns what its users are to own.
  std::shared_ptr<const Module> add(std::shared_ptr<const Module> loaded,
                                    std::span<const std::int64_t> problem,
                                    const detail::LaunchPlan& plan);
  /// All that are loaded.
  std::vector<std::shared_ptr<const Module>> all() const;

 private:
  /// What a kernel was loaded for.
  struct Purpose {
    Digest binary;
    Values needs;    ///< what was asked of the device, see Device::load()
    Values problem;  ///< empty: any
    auto operator<=>(const Purpose&) const = default;
  };

  bool serves_one_problem(const Digest& binary) const;

  const Keep keep_;
  const std::shared_ptr<Count> unloaded_;
  cache::SingleFlight<Purpose, std::shared_ptr<const Module>> flights_;
  mutable std::mutex mutex_;
  std::map<Purpose, std::weak_ptr<const Module>> found_;
  std::set<Digest> with_variables_;
  std::vector<std::weak_ptr<const Module>> all_;
  std::vector<std::shared_ptr<const Module>> kept_;
};

}  // namespace kiln::runtime
