// Which problems of which handles and choices a manifest asks for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kiln/manifest.hpp"
#include "kiln/prepare.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/provisions.hpp"
#include "runtime/serve/served_choice.hpp"
#include "runtime/serve/served_handle.hpp"
#include "runtime/tune/sources_read.hpp"

namespace kiln::runtime {

/// One bucketed problem of one handle.
struct PrepareItem {
  std::shared_ptr<ServedHandle> handle;
  Values problem;
  std::size_t place = 0;            ///< among the report's problems
  std::vector<Values> instances{};  ///< that the manifest names
  BestConfigs best{};
  bool usable = false;    ///< it was looked at, and the kernel's own rules do not fail for it
  std::string lacking{};  ///< why one of `instances` cannot be had
  std::shared_ptr<SourcesRead> sources{};  ///< of the handle's kernel
  std::optional<Missing> missing{};  ///< the binary that `lacking` is about, if it is about one
  /// Whether it may be tuned: not for the sake of a choice whose answer is final and another one.
  bool tuned = true;
  std::optional<TuneOptions> tuning{};  ///< a choice's own

  Provisions& provisions() const { return handle->provisions(); }
  const KernelDefinition& kernel() const { return handle->definition(); }
};

/// One exact problem of one choice.
struct ChoiceItem {
  std::shared_ptr<ServedChoice> choice;
  Values problem;
  std::size_t place = 0;  ///< among the report's problems
  std::size_t entry = 0;  ///< among ChoiceEntries
  bool answered = false;  ///< nothing is to be measured for it
  struct KernelItem {
    std::string alternative;
    std::size_t item;  ///< that launches of the exact problem use
  };
  std::vector<KernelItem> kernels{};
};

/// The distinct problems of choices that a manifest names, whatever this process has of them: the
/// same on all ranks.
class ChoiceEntries {
 public:
  explicit ChoiceEntries(const Manifest& manifest);
  std::size_t count() const noexcept { return places_.size(); }
  std::size_t place(const WantedInstance& wanted) const { return places_.at(named(wanted)); }

 private:
  using Named = std::tuple<std::string, std::vector<std::string>, std::string,
                           std::map<std::string, std::int64_t>>;
  static Named named(const WantedInstance& wanted) {
    return {wanted.kernel, wanted.types, wanted.target, wanted.problem};
  }
  std::map<Named, std::size_t> places_;
};

/// Each once, on all living handles and choices with the entry's name and types, and on the kernels
/// of these choices.
struct PrepareItems {
  std::vector<PrepareItem> kernels;
  std::vector<ChoiceItem> choices;
  /// By place in the report: the manifest's entry; nothing: it is there for a choice alone.
  std::vector<std::optional<std::size_t>> entries;
};

/// The report gets all of them, and the entries for which there is none.
/// @param tunes whether choices may be measured
PrepareItems prepare_items(const detail::Engine& engine, const Manifest& manifest, bool tunes,
                           std::vector<PreparedProblem>& report);

}  // namespace kiln::runtime
