// Measured search spaces: files in the community's T4 results format, read, written, and used as a
// device, so that searches can be tested and compared without hardware.
//
//   kiln::RecordedSpace space("gemm.t4.json.gz");
//   space.optimum(); space.config(space.best());
//   kiln::Runtime runtime({.device = "recorded:gemm.t4.json.gz"});
//   runtime.tuned(kiln::recorded_kernel(space)).tune({});
//   kiln::write_t4(result, "mine.t4.json");
//
// T4 is JSON: `metadata.timeunit` and a list `results`, each with `configuration`,
// `times.runtimes` (the raw repeats), `times.compilation`, `invalidity` and `measurements`.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/definition.hpp"
#include "kiln/key.hpp"
#include "kiln/space.hpp"
#include "kiln/tune.hpp"

namespace kiln {

/// A parameter and its values as they stand in the file.
struct RecordedParameter {
  std::string name;
  /// Integers (also those written 16.0 or "16") keep their value. Booleans are 0 and 1. Fractions,
  /// texts and mixtures are numbered from 0: fractions in numeric order and of kind `integer`,
  /// since their order means something; the others in the order of their texts, as `enumeration`.
  FieldKind kind = FieldKind::integer;
  std::vector<std::int64_t> values;  ///< ascending
  std::vector<std::string> texts;    ///< the file's spelling of each value
};

/// Immutable and cheap to copy; all functions may be called from several threads. Times are
/// seconds. Configs are numbered from 0 in the order of the file.
class RecordedSpace {
 public:
  /// Reads plain JSON or gzip in one pass. Known units: s, ms, us and ns and their English names,
  /// `miliseconds` included; a missing or empty unit means milliseconds, as Kernel Tuner writes.
  /// A config's time is the mean of its raw repeats, else its first measurement. An `invalidity`
  /// other than `correct`, known or not, is a failure.
  /// @throws UserError naming file, entry and reason: not readable, truncated, not JSON, an unknown
  /// unit, entries without `configuration` or with other parameters than the first, a config listed
  /// twice, a time that is not positive and finite, nothing that works; also where reading would
  /// take unreasonable memory (deep nesting, a gzip bomb).
  explicit RecordedSpace(const std::filesystem::path& file);

  const std::filesystem::path& file() const noexcept;
  /// The file's name up to its first dot.
  std::string name() const;
  /// A digest of everything that was read: equal spaces have equal digests, whatever their files
  /// are called.
  const Digest& digest() const noexcept;

  const std::vector<RecordedParameter>& parameters() const noexcept;
  std::size_t size() const noexcept;   ///< configs listed
  std::size_t works() const noexcept;  ///< those that are `measured`
  /// In constant time; nothing when the file does not list it.
  std::optional<std::size_t> find(std::span<const std::int64_t> config) const;

  Values config(std::size_t index) const;
  std::string describe(std::size_t index) const;  ///< `block=256,layout=row`, in the file's words
  /// measured, compile_failed, violates_constraint, wrong_result; else launch_failed.
  CandidateStatus status(std::size_t index) const;
  const std::string& invalidity(std::size_t index) const;  ///< as the file spells it
  double seconds(std::size_t index) const;                 ///< infinite when not `measured`
  std::span<const double> samples(
      std::size_t index) const;                     ///< raw repeats; none when not measured
  double compile_seconds(std::size_t index) const;  ///< 0: not recorded

  std::size_t best() const noexcept;  ///< the fastest; of equals the first
  double optimum() const noexcept;    ///< its seconds

  /// Every parameter with its values, and one constraint: the config is listed (in a space of more
  /// than a million combinations preceded by weaker ones, on its first values). The default is the
  /// first config that works.
  DynamicSpace dynamic() const;

  struct Data;

 private:
  std::shared_ptr<const Data> data_;
};

/// A kernel for the device `recorded:FILE` of the same file: its instances take the recorded times
/// and fail as recorded. Its problem has no fields.
KernelDefinition recorded_kernel(const RecordedSpace& space);

/// Writes a result as T4: milliseconds, raw samples, failures as `compile`, `runtime`,
/// `correctness` or `constraints` (over the device's limits). Candidates that broke a constraint of
/// the space or were not tried are left out. A name ending in .gz is compressed. The file appears
/// whole or not at all. @throws UserError when no candidate was measured or `file` is not a regular
/// file; EnvironmentError when it cannot be written.
void write_t4(const TuneResult& result, const std::filesystem::path& file);

}  // namespace kiln
