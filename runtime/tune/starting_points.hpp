// What other tunings of a kernel suggest: winners of neighbouring problems and of similar devices.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cache/store.hpp"
#include "kiln/detail/tunable.hpp"
#include "kiln/device.hpp"

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

 private:
  struct Winner {
    std::map<std::string, std::int64_t> config, problem;
    std::string target;
    std::vector<KeyField> device;  ///< fingerprint
  };
  void insert(const Key& key, const nlohmann::json& record);

  std::shared_ptr<cache::Store> store_;
  std::mutex mutex_;
  bool read_ = false;
  std::map<std::string, std::map<std::string, Winner>> winners_;  ///< by kernel, then by key
};

}  // namespace kiln::runtime
