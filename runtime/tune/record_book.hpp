// The records of one device: found, written, and asked for starting points.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/store.hpp"
#include "kiln/definition.hpp"
#include "kiln/tune.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/device/device.hpp"
#include "runtime/tune/record.hpp"
#include "runtime/tune/starting_points.hpp"

namespace kiln::runtime {

/// Shared by sessions, ranks, handles and functions. Thread-safe.
class RecordBook {
 public:
  /// `may_compile`: a record that another compiler's code was measured for is out of date.
  /// The builder must outlive the book.
  RecordBook(std::shared_ptr<cache::Store> store, std::shared_ptr<Device> device, Builder& builder,
             bool may_compile);

  /// Under which a result of this problem is kept.
  Key key(const KernelDefinition& kernel, std::span<const std::int64_t> problem);
  /// What the store, or what was shipped with the program, remembers of this problem.
  std::optional<Recall> recall(const KernelDefinition& kernel,
                               std::span<const std::int64_t> problem);
  /// Puts a result into the store, in the place of what is there. With a key and versions of the
  /// caller's: those from before it measured, since the source may have been edited meanwhile.
  void remember(const Key& key, const KernelDefinition& kernel, const TuneResult& result,
                std::span<const Version> versions);
  void remember(const KernelDefinition& kernel, const TuneResult& result) {
    remember(key(kernel, result.problem), kernel, result, versions());
  }
  /// The versions behind what is measured now.
  std::vector<Version> versions();
  /// Up to `count` winners of neighbouring problems and similar devices, the nearest first.
  std::vector<Values> starting_points(const KernelDefinition& kernel,
                                      std::span<const std::int64_t> problem, std::size_t count);

 private:
  Key key(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
          const std::optional<Digest>& source) const;

  std::shared_ptr<cache::Store> store_;
  std::shared_ptr<Device> device_;
  Builder& builder_;
  const bool may_compile_;
  StartingPoints starting_points_;
};

}  // namespace kiln::runtime
