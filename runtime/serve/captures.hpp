// What a runtime knows of the graphs that its program captures: what they keep loaded, and which of
// their nodes are launches that can be refreshed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/capture.hpp"
#include "kiln/detail/handle_core.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// What a graph keeps alive.
using Pins = std::vector<std::shared_ptr<const void>>;

/// Has loaded what graphs may launch or use.
class PinSource {
 public:
  virtual ~PinSource() = default;
  /// All of it so far. Thread-safe.
  virtual void add_to(Pins& pins) const = 0;
};

/// Thread-safe.
class Captures {
 public:
  explicit Captures(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  const Device& device() const noexcept { return *device_; }

  void add(const PinSource& source);
  void remove(const PinSource& source) noexcept;

  /// Counts a CaptureError. For one that is thrown: `throw captures.counted(...)`.
  CaptureError counted(const std::string& what);

  /// Whether a launch on a stream that is being captured would be recorded, where it would not fail
  /// or make another capture fail.
  bool records(Stream stream) const;

  /// Launches, on a stream that is being captured, what refresh() may exchange later: a stand-in,
  /// or what is provisional. The graph keeps its kernel, and refresh() finds the launch: its
  /// problem's bucket, which need not be the one that `launchable` was loaded for, tells it what
  /// to exchange it for. @pre records(stream)
  /// @throws before the stream is touched, what Graphs::retain throws; what the launch throws
  void launch_refreshable(const std::weak_ptr<detail::TunableHandle>& handle,
                          const detail::Launchable& launchable, const Values& bucket,
                          const Launch& launch, std::span<const std::int64_t> problem,
                          Stream stream, void** args);

  /// As Runtime::retain and Runtime::refresh.
  void retain(Stream stream);
  RefreshResult refresh(const InstantiatedGraph& graph);

  /// How many launches launch_refreshable() has made.
  std::size_t refreshable() const noexcept { return refreshable_; }
  std::size_t errors() const noexcept { return errors_; }
  /// How many of these launches are in living graphs, and were not exchanged. Waits for no refresh.
  std::size_t provisional_nodes() const;

 private:
  struct CapturedLaunch;
  struct Captured;
  struct Exchange;
  struct Graph {
    std::uint64_t id;  ///< of the capture
    std::weak_ptr<Captured> captured;
  };

  /// What belongs to the capture's graph, and lives as long as that.
  std::shared_ptr<Captured> of(const OngoingCapture& capture);
  std::shared_ptr<Captured> of(void* graph);
  /// @throws what the kernel's functions throw
  Exchange exchange_of(const CapturedLaunch& then, const detail::Tunable& what,
                       const detail::Launchable& now) const;

  const std::shared_ptr<Device> device_;
  std::mutex sources_mutex_;
  std::set<const PinSource*> sources_;
  mutable std::mutex mutex_;
  /// By graph. The driver may give a new graph the handle of one that was destroyed, of which
  /// something instantiated is still there: the last capture is the graph's.
  std::map<void*, Graph> graphs_;
  std::atomic<std::size_t> refreshable_{0}, errors_{0};
};

/// One handle's stand-ins as launches on a stream that is being captured get them. Thread-safe.
class CapturedStandIns {
 public:
  explicit CapturedStandIns(Captures& captures) : captures_(captures) {}

  /// The same stand-in, launched by Captures::launch_refreshable for this bucket.
  detail::Ready of(const detail::Ready& stand_in, std::span<const std::int64_t> bucket,
                   std::weak_ptr<detail::TunableHandle> handle);

 private:
  struct Noted : detail::Launchable {
    detail::Ready stand_in;
    Captures* captures;
    std::weak_ptr<detail::TunableHandle> handle;
  };
  static void start_noted(const detail::Launchable& ready, const Launch& launch,
                          std::span<const std::int64_t> problem, Stream stream, void** args);

  Captures& captures_;
};

}  // namespace kiln::runtime
