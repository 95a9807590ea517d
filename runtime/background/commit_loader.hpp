// What the handles of this process need for a commit's changes.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/background.hpp"
#include "kiln/communicator.hpp"
#include "runtime/background/ballot.hpp"
#include "runtime/background/proposal.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

using Handles = std::vector<std::shared_ptr<ServedHandle>>;

/// The handles of this process that have a kernel of this name and types.
Handles handles_named(const detail::Engine& engine, const CommitReport::Change& change);

/// What kernels are made of, as RecordBook::definition says it, in hex. That reads their sources,
/// so each kernel is asked for once, and an edit during the commit is not seen. Not thread-safe.
class Definitions {
 public:
  const std::string& of(RecordBook& records, const std::shared_ptr<const KernelDefinition>& kernel);

 private:
  std::map<std::shared_ptr<const KernelDefinition>, std::string> known_;
};

/// A change in the order of a kernel's fields and parameters.
struct ChangeValues {
  Values problem, config;
};

/// Nothing where it names others.
std::optional<ChangeValues> values_of(const CommitReport::Change& change,
                                      const KernelDefinition& kernel);

class CommitLoader {
 public:
  /// `found`, here, and `loaded`, of pending changes, must outlive this, as must `definitions`.
  CommitLoader(detail::Engine& engine, Definitions& definitions, std::span<const Proposal> found,
               std::span<const Proposal> loaded = {});

  /// Those handles whose kernel the change is about.
  Handles handles_of(const KernelChange& kernel_change) const;
  /// Whether a proposal for this problem of the handle is at hand, of whatever config.
  bool has_proposal(const ServedHandle& handle, const Values& problem) const {
    return proposals_.contains({&handle, problem});
  }

  /// What was found here.
  std::vector<Entry> entries() const;
  /// With nothing found.
  Entry entry_of(const ServedHandle& handle, const Values& problem) const;
  KernelChange kernel_change_of(const Proposal& found, const ServedHandle& handle) const;
  /// Without a config.
  KernelChange place(const ServedHandle& handle, const Values& problem) const;

  /// Lets the crew of this thread's priority compile what these handles, those of the change, do
  /// not have at hand. It goes on when the commit has ended. Invalid: there is nothing to compile.
  std::shared_future<void> build(const KernelChange& chosen,
                                 std::span<const std::shared_ptr<ServedHandle>> handles);
  /// What load() would find loaded.
  std::vector<Proposal> at_hand(const CommitReport::Change& change,
                                std::span<const std::shared_ptr<ServedHandle>> handles) const;
  /// Whether load() would find all that it needs loaded, or fail without loading anything.
  bool is_at_hand(const CommitReport::Change& change,
                  std::span<const std::shared_ptr<ServedHandle>> handles) const;
  /// Loads the config on every handle that has launched the problem; with `provisional`, only where
  /// a provisional launchable is in use. Returns nothing if any handle cannot load it, or if
  /// `build` has failed.
  std::optional<std::vector<Proposal>> load(const CommitReport::Change& change,
                                            std::span<const std::shared_ptr<ServedHandle>> handles,
                                            bool provisional,
                                            const std::shared_future<void>& build = {});

 private:
  const detail::Launchable* at_hand(const ServedHandle& handle, const Values& problem,
                                    const Values& config) const;
  bool is_at_hand(const CommitReport::Change& change, const ServedHandle& handle) const;
  void warn(const CommitReport::Change& change, const char* why) noexcept;
  detail::Launchable launchable(ServedHandle& handle, const Values& problem, const Values& config);

  detail::Engine& engine_;
  Definitions& definitions_;
  const std::span<const Proposal> found_;
  /// What was found and what is loaded, by handle and problem.
  std::multimap<std::pair<const void*, Values>, const Proposal*> proposals_;
  /// By definition and config: problems and handles share them.
  std::map<std::pair<std::string, Named>, std::shared_future<void>> builds_;
};

}  // namespace kiln::runtime
