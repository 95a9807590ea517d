// Graphs that the program captures and owns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/capture.hpp"
#include "kiln/device.hpp"

namespace kiln::runtime {

class Module;

/// Where work that is put on a stream now is recorded.
struct OngoingCapture {
  void* graph = nullptr;
  std::uint64_t id = 0;  ///< of this capture; no other one of the process has it
  /// The node that the stream's next one will depend on: what was recorded last. Null where that is
  /// none, or several.
  void* last_node = nullptr;
};

/// A node that is to launch another kernel.
struct NodeChange {
  /// Calls `use` with the arguments of the new kernel, made from those of the captured one.
  using Arguments =
      std::function<void(void* const* captured, const std::function<void(void** args)>& use)>;

  void* node;
  const Module* from;  ///< what was captured
  const Module* to;
  Launch launch;
  Arguments arguments{};  ///< empty: the same ones
};

/// Thread-safe. Never puts anything on a stream, and disturbs no capture.
class Graphs {
 public:
  virtual ~Graphs() = default;

  /// Nothing where the stream is not being captured, where its capture has failed, or where work on
  /// it would make the capture of another stream fail.
  virtual std::optional<OngoingCapture> capture(Stream stream) const = 0;

  /// `what` lives at least as long as the graph and all that is instantiated of it. It is destroyed
  /// on a thread on which the driver may be called.
  /// @throws EnvironmentError when the driver refuses
  virtual void retain(void* graph, std::shared_ptr<const void> what) = 0;

  /// Changes kernel nodes of `graph` in what was instantiated of it. Returns, for each, why that
  /// was not possible, or an empty text. What `arguments` throws is such a reason. @throws
  /// EnvironmentError when the graph's nodes cannot be listed
  virtual std::vector<std::string> change(const InstantiatedGraph& graph,
                                          std::span<const NodeChange> nodes) = 0;
};

}  // namespace kiln::runtime
