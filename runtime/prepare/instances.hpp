// The binaries that a preparation needs, each once.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "kiln/missing.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/prepare/prepare_items.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/served_handle.hpp"

namespace kiln::runtime {

/// find() and build() are called by several threads; questions may be asked meanwhile.
class Instances {
 public:
  /// Why an instance cannot be had; the first kind: it can.
  using Lacking = std::variant<std::monostate, std::string, Missing>;

  explicit Instances(detail::Engine& engine)
      : engine_(engine), keys_(engine.workshop().telemetry().counters.prepare_keys) {
    keys_.clear();
  }
  ~Instances() { forget(); }
  Instances(const Instances&) = delete;
  Instances& operator=(const Instances&) = delete;

  /// Looks for an instance, if it is asked for the first time, and keeps it for loads. What stands
  /// in the way is said by build().
  void find(const PrepareItem& item, const Values& config);
  void want(const PrepareItem& item, const Values& config);
  std::size_t size() const noexcept { return order_.size(); }
  /// Builds the nth that was wanted, unless it was found, and keeps it for loads. Whether it was
  /// compiled. @throws DeviceLost
  bool build(std::size_t n, Builder::Access access);
  /// Nothing where it was neither found nor built yet.
  std::optional<Lacking> lacking(const PrepareItem& item, const Values& config) const;
  /// Whether nothing is left to be built.
  bool all_found() const;
  bool can_be_loaded(const PrepareItem& item, const Values& config) const;
  /// Loads look for binaries by themselves again.
  void forget();

 private:
  struct Instance {
    std::shared_ptr<ServedHandle> handle;
    Values config;
    auto operator<=>(const Instance&) const = default;
  };
  struct Wanted {
    Instance instance;
    std::shared_ptr<SourcesRead> sources;
  };
  /// Bytes of binaries that are kept for loads; the store finds the others again.
  static constexpr std::size_t kMostKept = std::size_t{256} << 20;

  void keep(const Instance& instance, const Build& made);

  detail::Engine& engine_;
  Tally& keys_;  ///< of those that are wanted, by what became of them
  std::vector<Wanted> order_;
  std::set<Instance> wanted_;
  std::atomic<std::size_t> kept_{0};  ///< bytes
  mutable std::mutex mutex_;
  std::set<Instance> asked_;
  std::map<Instance, Lacking> known_;
};

}  // namespace kiln::runtime
