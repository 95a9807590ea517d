#include "fake_driver.hpp"

#include <algorithm>
#include <cstring>

#include "fake_driver_calls.hpp"

FakeDriver* current_fake = nullptr;

namespace {

kiln::runtime::DriverTable make_table() {
  kiln::runtime::DriverTable t;
  t.GetErrorName = [](CUresult r, const char** s) {
    *s = r == CUDA_ERROR_UNKNOWN             ? "CUDA_ERROR_UNKNOWN"
         : r == CUDA_ERROR_OUT_OF_MEMORY     ? "CUDA_ERROR_OUT_OF_MEMORY"
         : r == CUDA_ERROR_NO_BINARY_FOR_GPU ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
                                             : nullptr;
    return *s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  t.GetErrorString = [](CUresult r, const char** s) {
    *s = r == CUDA_ERROR_UNKNOWN ? "an unknown thing happened" : "described";
    return CUDA_SUCCESS;
  };
  t.Init = [](unsigned) {
    ENTER("cuInit");
    return CUDA_SUCCESS;
  };
  t.DriverGetVersion = [](int* v) {
    ENTER("cuDriverGetVersion");
    *v = 13000;
    return CUDA_SUCCESS;
  };
  t.DeviceGetCount = [](int* n) {
    ENTER("cuDeviceGetCount");
    *n = 2;
    return CUDA_SUCCESS;
  };
  t.DeviceGet = [](CUdevice* d, int i) {
    ENTER("cuDeviceGet");
    *d = i;
    return CUDA_SUCCESS;
  };
  t.DeviceGetName = [](char* s, int n, CUdevice) {
    ENTER("cuDeviceGetName");
    std::strncpy(s, current_fake->name.c_str(), static_cast<std::size_t>(n));
    return CUDA_SUCCESS;
  };
  t.DeviceGetAttribute = [](int* v, CUdevice_attribute a, CUdevice) {
    ENTER("cuDeviceGetAttribute");
    const auto found = current_fake->attributes.find(a);
    *v = found == current_fake->attributes.end() ? 1 : found->second;
    return CUDA_SUCCESS;
  };
  t.DeviceTotalMem = [](std::size_t* n, CUdevice) {
    ENTER("cuDeviceTotalMem");
    *n = (std::size_t{141} << 30) - 12345678;
    return CUDA_SUCCESS;
  };
  t.DevicePrimaryCtxRetain = [](CUcontext* c, CUdevice d) {
    ENTER("cuDevicePrimaryCtxRetain");
    ++current_fake->primary_retained;
    *c = current_fake->primary();
    current_fake->devices_of[*c] = d;
    return CUDA_SUCCESS;
  };
  t.DevicePrimaryCtxRelease = [](CUdevice) {
    const Lock lock(current_fake->mutex);
    ++current_fake->primary_released;
    return current_fake->enter("cuDevicePrimaryCtxRelease");
  };
  t.CtxGetCurrent = [](CUcontext* c) {
    ENTER("cuCtxGetCurrent");
    const auto& stack = current_fake->stacks[std::this_thread::get_id()];
    *c = stack.empty() ? nullptr : stack.back();
    return CUDA_SUCCESS;
  };
  t.CtxGetDevice = [](CUdevice* d) {
    ENTER("cuCtxGetDevice");
    const auto& stack = current_fake->stacks[std::this_thread::get_id()];
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *d = current_fake->devices_of[stack.back()];
    return CUDA_SUCCESS;
  };
  t.CtxPushCurrent = [](CUcontext c) {
    ENTER("cuCtxPushCurrent");
    current_fake->stacks[std::this_thread::get_id()].push_back(c);
    return CUDA_SUCCESS;
  };
  t.CtxPopCurrent = [](CUcontext* c) {
    const Lock lock(current_fake->mutex);
    const CUresult result = current_fake->enter("cuCtxPopCurrent");
    auto& stack = current_fake->stacks[std::this_thread::get_id()];
    if (stack.empty()) {
      current_fake->misuse.push_back("pop of an empty stack");
    } else {
      *c = stack.back();
      stack.pop_back();
    }
    return result;
  };
  t.ThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* m) {
    const Lock lock(current_fake->mutex);
    const CUresult result = current_fake->enter("cuThreadExchangeStreamCaptureMode");
    if (result != CUDA_SUCCESS && *m == CU_STREAM_CAPTURE_MODE_RELAXED) return result;
    std::swap(*m, current_fake->modes
                      .try_emplace(std::this_thread::get_id(), CU_STREAM_CAPTURE_MODE_GLOBAL)
                      .first->second);
    return result;
  };
  t.StreamCreate = [](CUstream* s, unsigned flags) {
    ENTER_UNSAFE("cuStreamCreate");
    if (flags != CU_STREAM_NON_BLOCKING) current_fake->misuse.push_back("blocking stream");
    *s = static_cast<CUstream>(create(current_fake->streams, "cuStreamCreate"));
    return CUDA_SUCCESS;
  };
  t.StreamDestroy = [](CUstream s) { return destroy(current_fake->streams, s, "cuStreamDestroy"); };
  t.StreamSynchronize = [](CUstream s) {
    ENTER_UNSAFE("cuStreamSynchronize");
    if (current_fake->capturing.count(s)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return CUDA_SUCCESS;
  };
  t.EventCreate = [](CUevent* e, unsigned) {
    ENTER_UNSAFE("cuEventCreate");
    *e = static_cast<CUevent>(create(current_fake->events, "cuEventCreate"));
    return CUDA_SUCCESS;
  };
  t.EventDestroy = [](CUevent e) { return destroy(current_fake->events, e, "cuEventDestroy"); };
  t.EventRecord = [](CUevent, CUstream) {
    ENTER("cuEventRecord");
    return CUDA_SUCCESS;
  };
  t.EventSynchronize = [](CUevent) {
    ENTER_UNSAFE("cuEventSynchronize");
    return CUDA_SUCCESS;
  };
  t.EventElapsedTime = [](float* ms, CUevent, CUevent) {
    ENTER("cuEventElapsedTime");
    *ms = 2.5f;
    return CUDA_SUCCESS;
  };
  t.ModuleLoadData = [](CUmodule* m, const void*) {
    ENTER_UNSAFE("cuModuleLoadData");
    *m = static_cast<CUmodule>(create(current_fake->modules, "cuModuleLoadData"));
    return CUDA_SUCCESS;
  };
  t.ModuleUnload = [](CUmodule m) { return destroy(current_fake->modules, m, "cuModuleUnload"); };
  t.ModuleGetFunction = [](CUfunction* f, CUmodule, const char* name) {
    ENTER("cuModuleGetFunction");
    if (std::strncmp(name, "kernel", 6) != 0) return CUDA_ERROR_NOT_FOUND;
    *f = static_cast<CUfunction>(current_fake->next_handle());
    current_fake->functions_by_name[name] = *f;
    return CUDA_SUCCESS;
  };
  t.ModuleGetGlobal = [](CUdeviceptr* at, std::size_t* bytes, CUmodule module, const char* name) {
    ENTER_UNSAFE("cuModuleGetGlobal");
    current_fake->require_context("cuModuleGetGlobal");
    if (!current_fake->modules.count(module))
      current_fake->misuse.push_back("a variable of a dead module");
    const auto found = current_fake->globals.find(name);
    if (found == current_fake->globals.end()) return CUDA_ERROR_NOT_FOUND;
    CUdeviceptr& address = current_fake->global_addresses[{module, name}];
    if (!address) address = reinterpret_cast<CUdeviceptr>(current_fake->next_handle());
    *at = address;
    *bytes = found->second;
    return CUDA_SUCCESS;
  };
  t.FuncLoad = [](CUfunction) {
    ENTER_UNSAFE("cuFuncLoad");
    return CUDA_SUCCESS;
  };
  t.FuncGetAttribute = [](int* v, CUfunction_attribute a, CUfunction) {
    ENTER("cuFuncGetAttribute");
    *v = current_fake->function_attributes[a];
    return CUDA_SUCCESS;
  };
  t.FuncSetAttribute = [](CUfunction f, CUfunction_attribute a, int v) {
    ENTER("cuFuncSetAttribute");
    current_fake->set_attributes[a] = v;
    current_fake->attributes_of[f][a] = v;
    return CUDA_SUCCESS;
  };
  t.OccupancyMaxActiveBlocksPerMultiprocessor = [](int* n, CUfunction, int threads, std::size_t) {
    ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    if (threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    *n = 2048 / threads;
    return CUDA_SUCCESS;
  };
  t.MemAlloc = [](CUdeviceptr* p, std::size_t) {
    ENTER_UNSAFE("cuMemAlloc");
    current_fake->require_context("cuMemAlloc");
    *p = reinterpret_cast<CUdeviceptr>(current_fake->next_handle());
    current_fake->memory.insert(*p);
    return CUDA_SUCCESS;
  };
  t.MemFree = [](CUdeviceptr p) { return destroy(current_fake->memory, p, "cuMemFree"); };
  t.MemcpyHtoDAsync = [](CUdeviceptr to, const void* from, std::size_t bytes, CUstream) {
    ENTER_UNSAFE("cuMemcpyHtoDAsync");
    current_fake->require_context("cuMemcpyHtoDAsync");
    current_fake->uploaded[to].assign(static_cast<const char*>(from), bytes);
    return CUDA_SUCCESS;
  };
  t.MemcpyDtoHAsync = [](void*, CUdeviceptr, std::size_t, CUstream) {
    ENTER_UNSAFE("cuMemcpyDtoHAsync");
    current_fake->require_context("cuMemcpyDtoHAsync");
    return CUDA_SUCCESS;
  };
  t.MemcpyDtoDAsync = [](CUdeviceptr, CUdeviceptr, std::size_t, CUstream) {
    ENTER("cuMemcpyDtoDAsync");
    current_fake->require_context("cuMemcpyDtoDAsync");
    return CUDA_SUCCESS;
  };
  t.MemsetD8Async = [](CUdeviceptr, unsigned char, std::size_t, CUstream) {
    ENTER("cuMemsetD8Async");
    current_fake->require_context("cuMemsetD8Async");
    return CUDA_SUCCESS;
  };
  t.LaunchKernel = [](CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                      unsigned bz, unsigned shared, CUstream stream, void** args, void**) {
    ENTER("cuLaunchKernel");
    if (const CUresult refused = current_fake->placed(stream); refused != CUDA_SUCCESS)
      return refused;
    if (const auto capture = current_fake->capturing.find(stream);
        capture != current_fake->capturing.end()) {
      ++capture->second;
      const auto node = static_cast<CUgraphNode>(current_fake->next_handle());
      current_fake->nodes[current_fake->capture_graphs[stream]].push_back(node);
      current_fake->node_launches[node] = {f,  gx,     gy,   gz,      bx,      by,
                                           bz, shared, args, nullptr, nullptr, nullptr};
      return CUDA_SUCCESS;
    }
    current_fake->launches.push_back(
        {{gx, gy, gz}, {bx, by, bz}, shared, stream, current_fake->primary(), args});
    return CUDA_SUCCESS;
  };
  t.LaunchKernelEx = [](const CUlaunchConfig* c, CUfunction, void** args, void**) {
    ENTER("cuLaunchKernelEx");
    if (const CUresult refused = current_fake->placed(c->hStream); refused != CUDA_SUCCESS)
      return refused;
    FakeDriver::Launch launch{{c->gridDimX, c->gridDimY, c->gridDimZ},
                              {c->blockDimX, c->blockDimY, c->blockDimZ},
                              c->sharedMemBytes,
                              c->hStream,
                              current_fake->primary(),
                              args};
    for (unsigned i = 0; i < c->numAttrs; ++i)
      launch.attributes[c->attrs[i].id] = c->attrs[i].value;
    current_fake->launches.push_back(std::move(launch));
    return CUDA_SUCCESS;
  };
  t.OccupancyMaxActiveClusters = [](int* clusters, CUfunction, const CUlaunchConfig*) {
    ENTER("cuOccupancyMaxActiveClusters");
    current_fake->require_context("cuOccupancyMaxActiveClusters");
    *clusters = current_fake->resident_clusters;
    return CUDA_SUCCESS;
  };
  t.TensorMapEncodeTiled = [](CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                              void* address, const cuuint64_t* size, const cuuint64_t* stride,
                              const cuuint32_t* box, const cuuint32_t* step, CUtensorMapInterleave,
                              CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                              CUtensorMapFloatOOBfill) {
    ENTER("cuTensorMapEncodeTiled");
    current_fake->require_context("cuTensorMapEncodeTiled");
    current_fake->maps.push_back({type,
                                  rank,
                                  address,
                                  {size, size + rank},
                                  {stride, stride + rank - 1},
                                  {box, box + rank},
                                  {step, step + rank},
                                  swizzle,
                                  promotion});
    std::memcpy(map, &address, sizeof address);
    return CUDA_SUCCESS;
  };
  t.TensorMapReplaceAddress = [](CUtensorMap* map, void* address) {
    ENTER("cuTensorMapReplaceAddress");
    current_fake->require_context("cuTensorMapReplaceAddress");
    std::memcpy(map, &address, sizeof address);
    return CUDA_SUCCESS;
  };
  add_graphs(t);
  add_peers(t);
  return t;
}

}  // namespace

FakeDriver::FakeDriver() : table_(std::make_shared<kiln::runtime::DriverTable>(make_table())) {
  current_fake = this;
  attributes = {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
                {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
                {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
                {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
                {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
                {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
                {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
                {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000}};
  function_attributes = {{CU_FUNC_ATTRIBUTE_NUM_REGS, 40},
                         {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 1024},
                         {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 16},
                         {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 512}};
}

FakeDriver::~FakeDriver() { current_fake = nullptr; }

CUresult FakeDriver::enter(const char* call) {
  calls.emplace_back(call);
  if (callbacks_.count(std::this_thread::get_id()))
    misuse.push_back(std::string(call) + " in a callback");
  if (shut_down) return CUDA_ERROR_DEINITIALIZED;
  if (index_++ == fail_at || fail_call == call) {
    failed_call = call;
    return code;
  }
  return CUDA_SUCCESS;
}

void FakeDriver::require_context(const char* call) {
  const auto& stack = stacks[std::this_thread::get_id()];
  if (stack.empty()) misuse.push_back(std::string(call) + " without a context");
}

int FakeDriver::count(const std::string& call) const {
  return static_cast<int>(std::count(calls.begin(), calls.end(), call));
}
int FakeDriver::position(const std::string& call) const {
  const auto found = std::find(calls.begin(), calls.end(), call);
  return found == calls.end() ? -1 : static_cast<int>(found - calls.begin());
}

void FakeDriver::push_foreign(CUcontext context, CUdevice device) {
  devices_of[context] = device;
  stacks[std::this_thread::get_id()].push_back(context);
}
CUcontext FakeDriver::current() const {
  const auto found = stacks.find(std::this_thread::get_id());
  return found == stacks.end() || found->second.empty() ? nullptr : found->second.back();
}
std::size_t FakeDriver::depth() const {
  const auto found = stacks.find(std::this_thread::get_id());
  return found == stacks.end() ? 0 : found->second.size();
}
void FakeDriver::clear_thread() { stacks.erase(std::this_thread::get_id()); }
CUstreamCaptureMode FakeDriver::capture_mode() const {
  const auto found = modes.find(std::this_thread::get_id());
  return found == modes.end() ? CU_STREAM_CAPTURE_MODE_GLOBAL : found->second;
}
