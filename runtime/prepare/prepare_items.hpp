// Which problems of which handles and choices a manifest asks for.
#pragma once

#include <memory>
#include <optional>
#include <string>
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
  /// Whether it may be tuned: not for the sake of a choice that is answered.
  bool tuned = true;

  Provisions& provisions() const { return handle->provisions(); }
  const KernelDefinition& kernel() const { return handle->definition(); }
};

/// One exact problem of one choice.
struct ChoiceItem {
  std::shared_ptr<ServedChoice> choice;  ///< null: ranks may have it, and this one has not
  Values problem;
  std::size_t place = 0;               ///< among the report's problems
  bool answered = false;               ///< nothing is to be measured for it
  std::vector<std::size_t> kernels{};  ///< items that stand behind its kernels
};

/// Each once, on all living handles and choices with the entry's name and types, and on the kernels
/// of these choices.
struct PrepareItems {
  std::vector<PrepareItem> kernels;
  std::vector<ChoiceItem> choices;
  /// By place in the report: the manifest's entry; nothing: it is there for a choice alone.
  std::vector<std::optional<std::size_t>> entries;
};

/// The report gets all of them, and the entries for which there is none. @param ranks whether ranks
/// decide
PrepareItems prepare_items(const detail::Engine& engine, const Manifest& manifest, bool ranks,
                           std::vector<PreparedProblem>& report);

}  // namespace kiln::runtime
