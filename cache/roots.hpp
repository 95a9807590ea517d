// The read-only roots of a store: opened at the first need, asked in order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache/root.hpp"
#include "kiln/log.hpp"
#include "kiln/store.hpp"

namespace kiln::cache {

/// Safe from any number of threads. Nothing is thrown but std::bad_alloc.
class Roots {
 public:
  /// Touches no file. See kiln::StoreOptions::roots and bundle_key for what their being empty
  /// means.
  explicit Roots(const StoreOptions& options);

  /// The usable roots. The first call opens them, and logs a warning for each that cannot.
  const std::vector<std::unique_ptr<Root>>& usable();
  /// Why the others cannot.
  std::vector<std::string> problems();
  /// Whether any were named.
  bool any() const noexcept { return !named_.empty(); }
  /// One for each that is named, in order.
  std::vector<StoreStatistics::Root> statistics();

 private:
  struct Problem {
    std::filesystem::path path;
    std::string what;
  };

  const LogSink log_;
  std::vector<std::filesystem::path> named_;
  std::filesystem::path public_key_;
  std::once_flag opened_;
  std::vector<std::unique_ptr<Root>> usable_;
  std::vector<Problem> problems_;
};

}  // namespace kiln::cache
