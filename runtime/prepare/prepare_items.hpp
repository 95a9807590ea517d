// Which problems of which handles a manifest asks for.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kiln/manifest.hpp"
#include "kiln/prepare.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/provisions.hpp"
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

  Provisions& provisions() const { return handle->provisions(); }
  const KernelDefinition& kernel() const { return handle->definition(); }
};

/// Each once, on all living handles with the entry's kernel and types. The report gets all of them,
/// and the entries for which there is none.
std::vector<PrepareItem> prepare_items(const detail::Engine& engine, const Manifest& manifest,
                                       std::vector<PreparedProblem>& report);

}  // namespace kiln::runtime
