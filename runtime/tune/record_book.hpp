// The records of one device: found, written, and asked for starting points.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/store.hpp"
#include "kiln/detail/tunable.hpp"
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

  /// The key under which this problem's result is kept.
  Key key(const detail::Tunable& subject, std::span<const std::int64_t> problem);
  /// What the store, or what was shipped with the program, remembers of this problem. Nothing where
  /// a source cannot be read and there are records of several. A record that is what is asked for
  /// is not hidden by one whose search did not end, was of another space or, where a policy is
  /// asked for, was timed by another policy.
  std::optional<Recall> recall(const detail::Tunable& subject,
                               std::span<const std::int64_t> problem,
                               const std::optional<MeasuringPolicy>& asked = {}) {
    return recall(subject, problem, asked, source_digests_of(subject));
  }
  /// As the first, with the sources as they were a moment ago.
  std::optional<Recall> recall(const detail::Tunable& subject,
                               std::span<const std::int64_t> problem,
                               const std::optional<MeasuringPolicy>& asked,
                               const SourceDigests& sources);
  /// What may answer these options. A launch is content with any policy, unless one was asked for.
  std::optional<Recall> recall(const detail::Tunable& subject,
                               std::span<const std::int64_t> problem, const TuneOptions& options,
                               bool for_launch) {
    return recall(subject, problem, options, for_launch, source_digests_of(subject));
  }
  std::optional<Recall> recall(const detail::Tunable& subject,
                               std::span<const std::int64_t> problem, const TuneOptions& options,
                               bool for_launch, const SourceDigests& sources) {
    const bool any = for_launch && !options.launching;
    return recall(subject, problem, any ? std::nullopt : std::optional(policy_of(options)),
                  sources);
  }
  /// The same under `key`, which the caller took before it measured. Nothing where the source was
  /// edited meanwhile: what is there now is of another one.
  std::optional<Recall> latest(const Key& key, const detail::Tunable& subject,
                               std::span<const std::int64_t> problem, const TuneOptions& options,
                               bool for_launch) {
    if (this->key(subject, problem) != key) return {};
    return recall(subject, problem, options, for_launch);
  }
  SourceDigests source_digests_of(const detail::Tunable& subject);
  /// Puts a result into the store, in the place of what is there. The caller passes the key and the
  /// versions that it took before measuring, because the source may be edited meanwhile. What
  /// why_not_kept() speaks of stays in this object alone.
  /// @param faulted as Recall::faulted
  void remember(const Key& key, const detail::Tunable& subject, const TuneResult& result,
                std::span<const Version> versions, const MeasuringPolicy& policy, bool faulted);
  /// Why no other process may trust a record of this kernel: not all of its includes can be
  /// followed, so an edit might not be seen. Empty: records are kept.
  std::string why_not_kept(const detail::Tunable& subject);
  /// What records of all problems of this kernel, or function, launch: winners and defaults. Reads
  /// all records.
  std::vector<Values> in_use(const detail::Tunable& subject);
  /// As definition_digest, with the sources as they are now.
  Digest definition(const detail::Tunable& subject);
  /// The versions behind what is measured now.
  std::vector<Version> versions(const detail::Tunable& subject);
  /// Up to `count` winners of neighbouring problems and similar devices, the nearest first.
  std::vector<Values> starting_points(const detail::Tunable& subject,
                                      std::span<const std::int64_t> problem, std::size_t count);
  /// The winner of the nearest problem on this device that the problem allows.
  std::optional<Values> nearest_winner(const detail::Tunable& subject,
                                       std::span<const std::int64_t> problem);
  /// What was measured for `count` neighbouring problems and similar devices, the nearest first.
  std::vector<Evidence> evidence(const detail::Tunable& subject,
                                 std::span<const std::int64_t> problem, std::size_t count);

 private:
  std::shared_ptr<cache::Store> store_;
  std::shared_ptr<Device> device_;
  Builder& builder_;
  const bool may_compile_;
  StartingPoints starting_points_;
  std::mutex unkept_mutex_;
  std::map<Digest, std::string> unkept_;  ///< records that are not kept, as JSON, by key
};

}  // namespace kiln::runtime
