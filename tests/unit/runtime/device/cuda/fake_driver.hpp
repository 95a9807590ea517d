// A CUDA driver made of counters: it records the calls, keeps each thread's stack of contexts,
// counts what is alive, and refuses whichever call it is told to.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/device/cuda/driver.hpp"

class FakeDriver {
 public:
  /// One at a time: the table's functions find it through a global of the test's.
  FakeDriver();
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  std::shared_ptr<const kiln::runtime::DriverTable> table() const { return table_; }
  /// Whether something may still call the driver: other threads let go of the table last of all.
  bool in_use() const { return table_.use_count() > 1; }
  /// To take functions away that a driver may lack.
  kiln::runtime::DriverTable& functions() { return *table_; }

  // What to refuse.
  int fail_at = -1;       ///< the index of the call, over all
  std::string fail_call;  ///< every call of this name, e.g. `cuModuleLoadData`
  CUresult code = CUDA_ERROR_UNKNOWN;
  CUcontext destroyed = nullptr;        ///< by the program, which may have left it current
  std::atomic<bool> shut_down = false;  ///< everything answers CUDA_ERROR_DEINITIALIZED

  // What the device is.
  std::map<CUdevice_attribute, int> attributes;
  std::string name = "Fake H200";
  std::map<CUfunction_attribute, int> function_attributes;
  int peers_reach = 1;                         ///< whether devices reach each other's memory
  std::map<std::string, std::size_t> globals;  ///< bytes of each module's variables, by symbol

  // What was seen.
  std::vector<std::string> calls;
  std::string failed_call;
  int primary_retained = 0, primary_released = 0;
  std::set<void*> streams, events, modules, graphs, graph_execs;
  std::set<CUdeviceptr> memory;
  std::set<CUdeviceptr> opened;   ///< of other processes
  CUdeviceptr opened_handle = 0;  ///< the memory that the last handle was made for
  std::set<void*> registered;     ///< host memory that kernels reach
  std::set<std::pair<CUcontext, CUcontext>> peer_access;  ///< from a context to another one
  std::map<CUfunction_attribute, int> set_attributes;
  std::map<std::string, CUfunction> functions_by_name;
  std::map<CUfunction, std::map<CUfunction_attribute, int>> attributes_of;  ///< as they were set
  struct Launch {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    CUcontext context;
    void** args;
    std::map<CUlaunchAttributeID, CUlaunchAttributeValue> attributes{};
  };
  struct EncodedMap {
    CUtensorMapDataType type;
    cuuint32_t rank;
    void* address;
    std::vector<cuuint64_t> size, stride;
    std::vector<cuuint32_t> box, step;
    CUtensorMapSwizzle swizzle;
    CUtensorMapL2promotion promotion;
  };
  int resident_clusters = 66;
  std::vector<EncodedMap> maps;  ///< encoded so far; a CUtensorMap begins with the address
  std::map<std::pair<CUmodule, std::string>, CUdeviceptr> global_addresses;  ///< asked for
  std::map<CUdeviceptr, std::string> uploaded;                               ///< last copied there
  std::vector<Launch> launches;                                              ///< those that ran
  std::map<CUstream, std::size_t> capturing;  ///< launches recorded so far
  struct Capture {
    CUstreamCaptureMode mode;
    std::thread::id thread;
    std::vector<std::string> broken;
  };
  std::map<CUstream, Capture> captures;        ///< of the program's
  std::map<CUstream, CUgraph> capture_graphs;  ///< of those captures that were asked for theirs
  std::map<CUgraph, std::vector<CUgraphNode>> nodes;
  std::map<CUgraphNode, CUDA_KERNEL_NODE_PARAMS> node_launches;
  std::map<std::pair<CUgraphExec, CUgraphNode>, CUDA_KERNEL_NODE_PARAMS> changed_launches;
  struct UserObject {
    void* what;
    CUhostFn destroy;
    int references;
  };
  std::map<CUuserObject, UserObject> objects;
  std::map<void*, std::vector<CUuserObject>> kept;  ///< by a graph, and by what came of it
  bool lossy = false;                               ///< a capture's last edge is a programmatic one

  /// As if the program captured the stream on this thread.
  void begin_capture(CUstream stream, CUstreamCaptureMode mode);
  /// The calls that made the capture fail.
  std::vector<std::string> end_capture(CUstream stream);
  /// What a thread must not call while captures in some modes go on. The mutex is held.
  bool breaks_captures(const char* call);
  /// Gives up what a graph has kept. The mutex is not held.
  void give_up(void* graph);

  std::map<void*, std::size_t> recorded;  ///< launches in a graph, and in what came of it
  std::vector<std::size_t> replays;       ///< launches of each graph that ran
  std::vector<std::string> misuse;        ///< double frees, work without the right context

  bool leaks() const {
    return !opened.empty() || !registered.empty() || primary_retained != primary_released ||
           !streams.empty() || !events.empty() || !modules.empty() || !memory.empty() ||
           !graphs.empty() || !graph_execs.empty() || !capturing.empty() || !objects.empty();
  }
  int count(const std::string& call) const;
  /// Position of the first such call; -1 when there is none.
  int position(const std::string& call) const;

  // This thread's contexts, as if an engine had made them.
  void push_foreign(CUcontext context, CUdevice device);
  CUcontext current() const;
  std::size_t depth() const;
  void clear_thread();
  CUstreamCaptureMode capture_mode() const;

  /// Counts the call and says how it ends.
  CUresult enter(const char* call);
  void require_context(const char* call);
  /// What a launch of a function of the primary context meets on a stream, as an H200's driver has
  /// it: a stream of its own has a context, the default stream is the current context's.
  CUresult placed(CUstream stream) {
    if (stream || current() == primary()) return CUDA_SUCCESS;
    if (current() && current() == destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  }
  CUcontext primary() const { return reinterpret_cast<CUcontext>(0x100); }
  void* next_handle() { return reinterpret_cast<void*>(next_ += 0x10); }

  std::mutex mutex;
  std::map<std::thread::id, std::vector<CUcontext>> stacks;
  std::map<std::thread::id, CUstreamCaptureMode> modes;
  std::map<CUcontext, CUdevice> devices_of;

 private:
  std::set<std::thread::id> callbacks_;  ///< threads that must not call the driver
  std::shared_ptr<kiln::runtime::DriverTable> table_;
  std::uintptr_t next_ = 0x1000;
  int index_ = 0;
};
