// What tunes behind the launches of a runtime, as its handles see it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kiln/background.hpp"
#include "kiln/definition.hpp"
#include "runtime/serve/served_handle.hpp"
#include "runtime/tune/record.hpp"

namespace kiln::runtime {

/// Of one engine. Thread-safe.
class Background {
 public:
  virtual ~Background() = default;

  /// A launchable that is in use while something better is looked for: graphs that capture its
  /// launches can be refreshed. Its problem is tuned from now on, if it is not already.
  virtual detail::Launchable provisional(detail::Launchable launchable,
                                         const std::shared_ptr<ServedHandle>& handle) = 0;
  /// Whether the search that made this record goes on behind the launches.
  virtual bool goes_on(const Recall& known) const = 0;
  /// Something final is in use for the problem: it is not tuned any more.
  virtual void drop(const void* handle, const Values& problem) = 0;
  /// The handle is gone: what is measured for it is stopped.
  virtual void forget(const void* handle) = 0;
  /// Of these problems those whose search has not begun are not tuned any more. Erases the others
  /// that are unsettled from the list.
  virtual void withdraw(const void* handle, std::vector<Values>& problems) = 0;
  /// Whether what is on record for the problem is used only after a commit, because it is being
  /// tuned behind another handle of the kernel.
  virtual bool holds_back(const KernelDefinition& kernel,
                          std::span<const std::int64_t> problem) const = 0;

  /// As Runtime::window, with a limit that is checked.
  virtual std::shared_ptr<detail::OpenWindow> open_window(double max_seconds) = 0;
  /// As Runtime::settled.
  virtual bool settled() = 0;
  /// How often anything was published.
  virtual std::uint64_t generation() const noexcept = 0;
  /// As Runtime::commit.
  virtual CommitReport commit(const CommitOptions& options) = 0;
};

}  // namespace kiln::runtime
