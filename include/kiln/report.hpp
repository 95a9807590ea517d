// Results of tunings in other forms: JSON for programs; the reason of a pick, and a page of many
// results, for people.
//
//   std::ofstream("result.json") << kiln::to_json(result);
//
// A Report is given results, or the stores, bundles and files that have them (`read`), and makes
// one page of them (`html`).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kiln/tune.hpp"

namespace kiln {

struct Roofline;

/// What `kiln tune --json` prints of a problem, as one line: `default`, `winner`, `candidates`
/// (each with its times or its reason), `problem_fields` (in order), counts, the space, where the
/// time went, versions; with ranks `plan_digest`. Times are milliseconds (`_ms`) or seconds (`_s`).
/// Rates are there where the kernel says what it computes, percentages where a roofline is given.
/// Bytes of compilers' logs that are not UTF-8 are replaced.
std::string to_json(const TuneResult& result, const Roofline* roofline = nullptr);

/// Why the winner is not the candidate with the least `seconds`. Empty if it is that candidate, or
/// if nothing was measured.
std::string why_not_the_fastest(const TuneResult& result);

/// Results of many problems: all candidates and why each lost, how the searches went, what was
/// gained, several results of a problem (of ranks, or of edited sources) side by side. Not
/// thread-safe.
class Report {
 public:
  /// A file, or an entry of a bundle, that has no result.
  struct PassedOver {
    std::filesystem::path path;
    std::string why;
  };

  Report();
  Report(Report&&) noexcept;
  Report& operator=(Report&&) noexcept;
  ~Report();

  /// @param source where it is from, in words that its readers know
  void add(const TuneResult& result, const std::string& source = {});
  /// Reads, and changes nothing: a store's folder, which other processes may be writing to; any
  /// other folder, for the JSON files in it and below; a bundle; a JSON file, which is a record or
  /// what `kiln tune --json` printed. Results of the roofline's own kernels tell the device's
  /// roofline.
  /// @throws UserError when the path has no result at all, saying why; EnvironmentError when it
  /// cannot be read. Beside results, files that are damaged, of another version, or something else
  /// are passed over.
  void read(const std::filesystem::path& source);
  /// How often a problem (as it was measured) is launched, relative to others; several calls for a
  /// problem add up. A device's totals count each problem once where none of its problems has a
  /// weight. @throws UserError for a weight that is negative or infinite.
  void weigh(const std::string& kernel, const std::vector<std::string>& types,
             std::span<const std::int64_t> problem, double weight);

  std::size_t results() const noexcept;
  const std::vector<PassedOver>& passed_over() const noexcept;

  /// All of it as one line of JSON; docs/report.md describes it. Seconds, bytes, operations.
  std::string json() const;
  /// A whole HTML page that has the data inside and needs no network. Without plots where Kiln was
  /// built without them (has_plots). @throws EnvironmentError where Kiln's files are incomplete.
  std::string html() const;
  /// Whether the script that draws plots is part of this installation.
  static bool has_plots();

 private:
  struct Data;
  std::unique_ptr<Data> data_;
};

}  // namespace kiln
