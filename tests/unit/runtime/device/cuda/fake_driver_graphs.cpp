#include <algorithm>
#include <utility>

#include "fake_driver_calls.hpp"

void add_graphs(kiln::runtime::DriverTable& t) {
  t.StreamIsCapturing = [](CUstream s, CUstreamCaptureStatus* status) {
    ENTER("cuStreamIsCapturing");
    current_fake->require_context("cuStreamIsCapturing");
    const bool captured = current_fake->capturing.count(s) != 0;
    *status = captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    if (!s && !current_fake->capturing.empty()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return CUDA_SUCCESS;
  };
  t.StreamBeginCapture = [](CUstream s, CUstreamCaptureMode mode) {
    ENTER("cuStreamBeginCapture");
    current_fake->require_context("cuStreamBeginCapture");
    if (mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
      current_fake->misuse.push_back("capture of all");
    current_fake->capturing[s] = 0;
    return CUDA_SUCCESS;
  };
  t.StreamEndCapture = [](CUstream s, CUgraph* g) {
    const Lock lock(current_fake->mutex);
    const CUresult result = current_fake->enter("cuStreamEndCapture");
    if (!current_fake->capturing.count(s)) current_fake->misuse.push_back("end of no capture");
    const std::size_t launches = current_fake->capturing[s];
    current_fake->captures.erase(s);
    current_fake->capturing.erase(s);  // refused or not, the stream is free again
    *g = nullptr;
    if (result != CUDA_SUCCESS) return result;
    CUgraph& begun = current_fake->capture_graphs[s];
    *g = begun ? begun : static_cast<CUgraph>(create(current_fake->graphs, "cuStreamEndCapture"));
    current_fake->capture_graphs.erase(s);
    current_fake->recorded[*g] = launches;
    return CUDA_SUCCESS;
  };
  t.GraphGetNodes = [](CUgraph g, CUgraphNode* nodes, std::size_t* n) {
    ENTER("cuGraphGetNodes");
    if (nodes)
      std::copy_n(current_fake->nodes[g].begin(), std::min(*n, current_fake->nodes[g].size()),
                  nodes);
    else
      *n = current_fake->recorded[g];
    return CUDA_SUCCESS;
  };
  t.StreamGetCaptureInfo = [](CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* g,
                              const CUgraphNode** dependencies, std::size_t* count) {
    ENTER("cuStreamGetCaptureInfo");
    current_fake->require_context("cuStreamGetCaptureInfo");
    if (!s && !current_fake->capturing.empty()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!current_fake->capturing.count(s)) return CUDA_SUCCESS;
    if (current_fake->lossy && dependencies) return CUDA_ERROR_LOSSY_QUERY;
    CUgraph& graph = current_fake->capture_graphs[s];
    if (!graph) {
      graph = static_cast<CUgraph>(create(current_fake->graphs, "cuStreamGetCaptureInfo"));
      current_fake->nodes[graph] = std::exchange(current_fake->nodes[nullptr], {});
    }
    *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    *id = reinterpret_cast<std::uintptr_t>(graph);
    *g = graph;
    if (!dependencies) return CUDA_SUCCESS;
    const auto& nodes = current_fake->nodes[graph];
    *count = nodes.empty() ? 0 : 1;
    if (!nodes.empty()) *dependencies = &nodes.back();
    return CUDA_SUCCESS;
  };
  t.UserObjectCreate = [](CUuserObject* object, void* what, CUhostFn destroy, unsigned count,
                          unsigned flags) {
    ENTER("cuUserObjectCreate");
    if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
    *object = static_cast<CUuserObject>(current_fake->next_handle());
    current_fake->objects[*object] = {what, destroy, static_cast<int>(count)};
    return CUDA_SUCCESS;
  };
  t.UserObjectRelease = [](CUuserObject object, unsigned) {
    {
      ENTER("cuUserObjectRelease");
      current_fake->kept[nullptr].push_back(object);
    }
    current_fake->give_up(nullptr);
    return CUDA_SUCCESS;
  };
  t.GraphRetainUserObject = [](CUgraph g, CUuserObject object, unsigned, unsigned flags) {
    ENTER("cuGraphRetainUserObject");
    if (flags != CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
    current_fake->kept[g].push_back(object);
    return CUDA_SUCCESS;
  };
  t.GraphKernelNodeGetParams = [](CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* launch) {
    ENTER("cuGraphKernelNodeGetParams");
    *launch = current_fake->node_launches.at(node);
    return CUDA_SUCCESS;
  };
  t.GraphExecKernelNodeSetParams = [](CUgraphExec e, CUgraphNode node,
                                      const CUDA_KERNEL_NODE_PARAMS* launch) {
    ENTER("cuGraphExecKernelNodeSetParams");
    current_fake->require_context("cuGraphExecKernelNodeSetParams");
    current_fake->changed_launches[{e, node}] = *launch;
    return CUDA_SUCCESS;
  };
  t.GraphInstantiateWithFlags = [](CUgraphExec* e, CUgraph g, unsigned long long) {
    ENTER_UNSAFE("cuGraphInstantiateWithFlags");
    *e = static_cast<CUgraphExec>(create(current_fake->graph_execs, "cuGraphInstantiateWithFlags"));
    current_fake->recorded[*e] = current_fake->recorded[g];
    current_fake->kept[*e] = current_fake->kept[g];
    for (const CUuserObject object : current_fake->kept[g])
      ++current_fake->objects.at(object).references;
    return CUDA_SUCCESS;
  };
  t.GraphLaunch = [](CUgraphExec e, CUstream) {
    ENTER("cuGraphLaunch");
    current_fake->require_context("cuGraphLaunch");
    current_fake->replays.push_back(current_fake->recorded[e]);
    return CUDA_SUCCESS;
  };
  t.GraphDestroy = [](CUgraph g) {
    const CUresult result = destroy(current_fake->graphs, g, "cuGraphDestroy");
    current_fake->give_up(g);
    return result;
  };
  t.GraphExecDestroy = [](CUgraphExec e) {
    const CUresult result = destroy(current_fake->graph_execs, e, "cuGraphExecDestroy");
    current_fake->give_up(e);
    return result;
  };
}

void FakeDriver::begin_capture(CUstream stream, CUstreamCaptureMode mode) {
  const Lock lock(mutex);
  capturing[stream] = 0;
  captures[stream] = {mode, std::this_thread::get_id(), {}};
}

std::vector<std::string> FakeDriver::end_capture(CUstream stream) {
  const Lock lock(mutex);
  capturing.erase(stream);
  capture_graphs.erase(stream);
  const auto ended = captures.extract(stream);
  return ended.mapped().broken;
}

bool FakeDriver::breaks_captures(const char* call) {
  const auto here = std::this_thread::get_id();
  const auto mode = modes.try_emplace(here, CU_STREAM_CAPTURE_MODE_GLOBAL).first->second;
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  bool breaks = false;
  for (auto& [stream, capture] : captures)
    if (capture.thread == here ? capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED
                               : capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                     mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
      capture.broken.emplace_back(call);
      breaks = true;
    }
  return breaks;
}

void FakeDriver::give_up(void* graph) {
  std::vector<UserObject> ended;
  {
    const Lock lock(mutex);
    for (const CUuserObject object : std::exchange(kept[graph], {})) {
      const auto found = objects.find(object);
      if (--found->second.references > 0) continue;
      ended.push_back(found->second);
      objects.erase(found);
    }
  }
  for (const UserObject& object : ended)
    std::thread([&] {  // the driver has one of its own for callbacks
      {
        const Lock lock(mutex);
        callbacks_.insert(std::this_thread::get_id());
      }
      object.destroy(object.what);
      const Lock lock(mutex);
      callbacks_.erase(std::this_thread::get_id());
    })
        .join();
}
