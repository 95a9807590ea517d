// The binaries that a preparation needs, each once.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "kiln/missing.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/served_handle.hpp"
#include "runtime/tune/sources_read.hpp"

namespace kiln::runtime {

/// Built by several threads; what is asked about one may be asked meanwhile.
class Instances {
 public:
  /// Why an instance cannot be had; the first kind: it can.
  using Lacking = std::variant<std::monostate, std::string, Missing>;

  explicit Instances(detail::Engine& engine) : engine_(engine) {}
  ~Instances() { forget(); }
  Instances(const Instances&) = delete;
  Instances& operator=(const Instances&) = delete;

  /// `sources`: of the handle's kernel.
  void want(const std::shared_ptr<ServedHandle>& handle, const Values& config,
            const std::shared_ptr<SourcesRead>& sources);
  std::size_t size() const noexcept { return order_.size(); }
  /// Builds the nth that was wanted, and keeps it for loads. Whether it was compiled.
  /// @throws DeviceLost
  bool build(std::size_t n, Builder::Access access);
  /// Nothing where it was not built yet.
  std::optional<Lacking> lacking(ServedHandle& handle, const Values& config) const;
  bool can_be_loaded(ServedHandle& handle, const Values& config) const;
  /// Loads look for binaries by themselves again.
  void forget();

 private:
  struct Instance {
    ServedHandle* handle;
    Values config;
    auto operator<=>(const Instance&) const = default;
  };
  struct Wanted {
    std::shared_ptr<ServedHandle> handle;
    Values config;
    std::shared_ptr<SourcesRead> sources;
  };
  /// Bytes of binaries that are kept for loads; the store finds the others again.
  static constexpr std::size_t kMostKept = std::size_t{256} << 20;

  Build build(const Wanted& wanted, Builder::Access access);

  detail::Engine& engine_;
  std::vector<Wanted> order_;
  std::set<Instance> seen_;
  std::atomic<std::size_t> kept_{0};  ///< bytes
  mutable std::mutex mutex_;
  std::map<Instance, Lacking> built_;
};

}  // namespace kiln::runtime
