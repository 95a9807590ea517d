// Internal: graphs that the program captures, as the driver has them. Includes cuda.h.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/cuda/cuda_objects.hpp"
#include "runtime/device/cuda/reaper.hpp"
#include "runtime/device/graphs.hpp"

namespace kiln::runtime {

/// What is retained belongs to a user object of the graph: the driver hands its references on to
/// copies and executable graphs, and ends it with the last of them.
class ProgramGraphs final : public Graphs {
 public:
  explicit ProgramGraphs(std::shared_ptr<const CudaContext> context)
      : context_(std::move(context)) {}

  std::optional<OngoingCapture> capture(Stream stream) const override;
  void retain(void* graph, std::shared_ptr<const void> what) override;
  std::vector<std::string> change(const InstantiatedGraph& graph,
                                  std::span<const NodeChange> nodes) override;

 private:
  std::shared_ptr<const CudaContext> context_;
  Reaper reaper_;
};

}  // namespace kiln::runtime
