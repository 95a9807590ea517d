#include "runtime/device/cuda/program_graphs.hpp"

#include <algorithm>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/cuda/cuda_kernel.hpp"

namespace kiln::runtime {

namespace {

/// In ascending order.
std::vector<CUgraphNode> nodes_of(const DriverTable& driver, CUgraph graph) {
  std::size_t count = 0;
  driver.check(driver.GraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes");
  std::vector<CUgraphNode> nodes(count);
  driver.check(driver.GraphGetNodes(graph, nodes.data(), &count), "cuGraphGetNodes");
  nodes.resize(std::min(count, nodes.size()));
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

}  // namespace

std::optional<OngoingCapture> ProgramGraphs::capture(Stream stream) const {
  const DriverTable& driver = context_->driver();
  if (!driver.StreamGetCaptureInfo) return {};
  const CurrentContext current(*context_);
  const auto native = static_cast<CUstream>(stream.handle);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  std::size_t count = 0;
  CUresult result = driver.StreamGetCaptureInfo(native, &status, &id, &graph, &nodes, &count);
  if (result == CUDA_ERROR_LOSSY_QUERY) {
    // The edge to the next node would be a programmatic one, which this version of the call cannot
    // tell.
    count = 0;
    result = driver.StreamGetCaptureInfo(native, &status, &id, &graph, nullptr, nullptr);
  }
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return {};
  driver.check(result, "cuStreamGetCaptureInfo");
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE || !graph) return {};
  return OngoingCapture{graph, id, count == 1 ? *nodes : nullptr};
}

void ProgramGraphs::retain(void* graph, std::shared_ptr<const void> what) {
  const DriverTable& driver = context_->driver();
  if (!driver.can_retain())
    throw EnvironmentError(
        "the NVIDIA driver has no user objects, so a graph cannot keep its kernels loaded; update "
        "the driver");
  const WorkingContext working(*context_);
  void* const held = reaper_.hold(std::move(what));
  CUuserObject object = nullptr;
  if (const CUresult result = driver.UserObjectCreate(&object, held, Reaper::release, 1,
                                                      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
      result != CUDA_SUCCESS) {
    Reaper::release(held);
    driver.check(result, "cuUserObjectCreate");
  }
  if (const CUresult result = driver.GraphRetainUserObject(static_cast<CUgraph>(graph), object, 1,
                                                           CU_GRAPH_USER_OBJECT_MOVE);
      result != CUDA_SUCCESS) {
    driver.UserObjectRelease(object, 1);
    driver.check(result, "cuGraphRetainUserObject");
  }
}

std::vector<std::string> ProgramGraphs::change(const InstantiatedGraph& graph,
                                               std::span<const NodeChange> changes) {
  const DriverTable& driver = context_->driver();
  const WorkingContext working(*context_);
  if (!driver.can_change_nodes())
    throw EnvironmentError(
        "the NVIDIA driver cannot change the nodes of an instantiated graph; update the driver");
  const std::vector<CUgraphNode> nodes = nodes_of(driver, static_cast<CUgraph>(graph.graph));
  const auto change = [&](const NodeChange& wanted) -> std::string {
    const auto node = static_cast<CUgraphNode>(wanted.node);
    CUDA_KERNEL_NODE_PARAMS launch{};
    if (!std::binary_search(nodes.begin(), nodes.end(), node) ||
        driver.GraphKernelNodeGetParams(node, &launch) != CUDA_SUCCESS ||
        launch.func != function_of(*wanted.from))
      return "the graph does not have the node that was captured";
    launch.func = function_of(*wanted.to);
    launch.gridDimX = wanted.launch.grid.x;
    launch.gridDimY = wanted.launch.grid.y;
    launch.gridDimZ = wanted.launch.grid.z;
    launch.blockDimX = wanted.launch.block.x;
    launch.blockDimY = wanted.launch.block.y;
    launch.blockDimZ = wanted.launch.block.z;
    launch.sharedMemBytes = wanted.launch.shared_bytes;
    CUresult result = CUDA_SUCCESS;
    const auto set = [&] {
      result =
          driver.GraphExecKernelNodeSetParams(static_cast<CUgraphExec>(graph.exec), node, &launch);
    };
    if (!wanted.arguments) {
      set();
    } else if (!launch.kernelParams) {
      return "the program has changed the node's arguments";
    } else {
      try {
        wanted.arguments(launch.kernelParams, [&](void** args) {
          launch.kernelParams = args;
          launch.extra = nullptr;
          set();
        });
      } catch (const DeviceLost&) {
        throw;
      } catch (const Error& error) {
        return error.what();
      }
    }
    return result == CUDA_SUCCESS ? std::string()
                                  : driver.describe(result, "cuGraphExecKernelNodeSetParams");
  };
  std::vector<std::string> refusals;
  for (const NodeChange& wanted : changes) refusals.push_back(change(wanted));
  return refusals;
}

}  // namespace kiln::runtime
