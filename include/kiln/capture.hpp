// CUDA graphs that a program captures: how to keep alive what they launch, and how to bring in what
// was tuned since. docs/engine.md, "Captures".
//
//   begin_capture(stream);                   // the program's: cuStreamBeginCapture
//   model(stream);                           // launches by handles
//   runtime.retain(stream);
//   auto [graph, exec] = end_capture(stream);  // ... and cuGraphInstantiate
//   tune(model);
//   for (auto& kept : runtime.refresh({graph, exec}).kept)
//     std::cout << kept.launch << " stays as it was: " << kept.why << "\n";
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kiln/version.hpp"

namespace kiln {

/// A graph and what was instantiated of it; both are the program's.
struct InstantiatedGraph {
  void* graph = nullptr;  ///< CUgraph or cudaGraph_t
  void* exec = nullptr;   ///< CUgraphExec or cudaGraphExec_t
};

/// What Runtime::refresh did with the refreshable launches of a graph's last capture.
struct RefreshResult {
  struct Kept {
    void* node =
        nullptr;         ///< CUgraphNode or cudaGraphNode_t; null where the driver did not name it
    std::string launch;  ///< kernel, problem and config: `gemm m=8, n=4096, k=4096 with block=64`
    std::string why;     ///< it launches what it launched before
  };
  std::size_t refreshed = 0;  ///< nodes that launch the config in use from now on
  std::vector<Kept> kept;     ///< nodes that could not be changed
};

}  // namespace kiln
