// What other tunings of a kernel suggest: winners of neighbouring problems and of similar devices,
// and all times that they took, as evidence.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cache/store.hpp"
#include "kiln/detail/tunable.hpp"
#include "kiln/device.hpp"
#include "runtime/search/strategy.hpp"
#include "runtime/tune/size_distance.hpp"

namespace kiln::runtime {

/// Reads the store once, when first asked; afterwards it knows what this process adds. Safe to use
/// from several threads.
class StartingPoints {
 public:
  explicit StartingPoints(std::shared_ptr<cache::Store> store) : store_(std::move(store)) {}

  void add(const Key& key, const nlohmann::json& record);
  /// Up to `count` distinct configs under today's parameters, of the nearest problem first: the
  /// distance is the sum over fields of |log2| of their ratio, and something for another device.
  std::vector<Values> nearest(const detail::Tunable& subject, std::span<const std::int64_t> problem,
                              const DeviceInfo& device, std::size_t count);
  /// The winner of the nearest problem that the problem allows: measured with the same source on the
  /// same device. `own`: the problem's record, which is no neighbour. Runs the program's functions
  /// without a lock.
  std::optional<Values> nearest_winner(const detail::Tunable& subject,
                                       std::span<const std::int64_t> problem,
                                       const DeviceInfo& device, const Key& own);
  /// What the `count` nearest tunings measured, without the record `own` of this very problem: it
  /// is no evidence, it is known. Configs with other parameters or values are left out. Their times
  /// are read from the store when they are first asked for.
  std::vector<Evidence> evidence(const detail::Tunable& subject,
                                 std::span<const std::int64_t> problem, const DeviceInfo& device,
                                 const Key& own, std::size_t count);

 private:
  struct Told {
    std::vector<std::string> parameters;    ///< of `results`
    std::vector<Evidence::Result> results;  ///< those that were measured or failed
  };
  struct Past {
    Key key;
    std::map<std::string, std::int64_t> winner, problem;
    std::string target;
    std::vector<KeyField> device;  ///< fingerprint
    std::optional<Told> told{};    ///< once it was asked for
  };
  void insert(const Key& key, const nlohmann::json& record);
  /// Past tunings of this subject, each with its distance. @pre the lock is held
  std::vector<std::pair<double, Past*>> pasts(const detail::Tunable& subject,
                                              std::span<const std::int64_t> problem,
                                              const DeviceInfo& device);
  const Told& told(Past& past);

  std::shared_ptr<cache::Store> store_;
  std::mutex mutex_;
  bool read_ = false;
  std::map<std::string, std::map<std::string, Past>> pasts_;  ///< by kernel, then by key
};

}  // namespace kiln::runtime
