// A tuning result as it is remembered: JSON with names, so that a space may grow without losing it.
#pragma once

#include <optional>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "kiln/detail/tunable.hpp"
#include "kiln/device.hpp"
#include "kiln/key.hpp"
#include "kiln/tune.hpp"

namespace kiln::runtime {

/// Digests of the sources that a result depends on (codegen::source_digest), where they can be
/// read.
struct SourceDigests {
  std::optional<Digest> kernel{};
  std::optional<Digest> reference{};  ///< of the device reference, if that is another kernel
  /// An include that cannot be followed, so that the digests cover less than a compiler reads;
  /// empty: there is none.
  std::string unfollowed{};
};

/// The field of a record's key that names the second of these.
inline constexpr const char* kReferenceSourceField = "device reference's source";

/// Equal where results may be compared: all of the definition that changes a kernel's code or what
/// is measured, and the sources, except the values of the parameters and what callables do.
Digest definition_digest(const detail::Tunable& subject, const SourceDigests& sources);

/// Whether two of one definition search among the same configs, except for what constraints do.
bool same_space(const detail::Tunable& a, const detail::Tunable& b,
                std::span<const std::int64_t> problem, const DeviceInfo& device);

/// The key under which a result is kept. What is wanted: the definition, as above; the bucketed
/// problem; the device's fingerprint. What it is made with: the sources.
Key record_key(const detail::Tunable& subject, std::span<const std::int64_t> problem,
               const DeviceInfo& device, const SourceDigests& sources);

/// A version behind a record, and what it means when it is another one today.
struct Version {
  enum class Rule { ignore, retune };
  std::string name, value;
  Rule rule = Rule::ignore;
};

/// How launches are timed. Times of two policies are not compared.
struct MeasuringPolicy {
  bool cold_cache = true, overlap_launches = false;  ///< as TuneOptions
  Launching launching = Launching::graph;

  bool operator==(const MeasuringPolicy&) const = default;
};
inline MeasuringPolicy policy_of(const TuneOptions& options) {
  // Ranks in step would time each other's flushes.
  const bool in_step = options.ranks && options.together.lockstep;
  return {options.cold_cache && !in_step, options.overlap_launches,
          options.launching.value_or(Launching::graph)};
}

/// @param device where it was tuned
/// @param policy by which it was tuned
nlohmann::json record_json(const TuneResult& result, const detail::Tunable& subject,
                           std::span<const Version> versions, const DeviceInfo& device,
                           const MeasuringPolicy& policy = {});

/// A record's field, which few have: Recall::faulted.
inline constexpr const char* kFaulted = "faulted";

/// Whether every value of a config is one of today's.
bool in_space(const DynamicSpace& space, const Values& config);
/// Whether two records are about one subject, source and device.
bool differs_in_problem_alone(const Key& a, const Key& b);

/// What a record says, in terms of today's space.
struct Recall {
  TuneResult result;
  /// The space, and the list of configs by the kernel's author, are still what was searched.
  bool same_space = false;
  MeasuringPolicy policy{};
  /// A process has died or lost its device over this problem, and not all candidates have been
  /// tried in a worker since then.
  bool faulted = false;
  /// Candidates that were built. Those that the author's list no longer has do not count.
  std::size_t evaluated = 0;
  /// Every config that the space allows, or that the author lists, was tried.
  bool exhausted = false;
};

/// Whether a candidate has cost a process something, or would have.
bool has_faulted(const Recall& known);

/// Returns nothing when the record is not one of Kiln's, when a version's rule demands tuning
/// again, or when the record names other parameters, another default, or a winner that has left the
/// space or is launched differently today. Other candidates that left the space, or are launched
/// differently, are dropped. Never throws because of the record's content.
std::optional<Recall> recall_from(const nlohmann::json& record, const detail::Tunable& subject,
                                  std::span<const std::int64_t> problem, const DeviceInfo& device,
                                  std::span<const Version> versions);

/// What a record says, in its own terms; `key` tells the order of the problem's fields. Nothing
/// when it is not one of ours. Never throws on account of the record's content.
std::optional<TuneResult> result_in(const nlohmann::json& record, const Key& key);

/// A result that says what was asked and has no candidate yet.
TuneResult empty_result(const detail::Tunable& subject, std::span<const std::int64_t> problem,
                        const DeviceInfo& device);

}  // namespace kiln::runtime
